"""Records: made, compared and refused like frozen dataclasses."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from backline.records import Record


class Point(Record):
    x: int
    y: int = 0


class Named(Point):
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a name is needed")


def test_fields_of_the_base_come_first_and_a_default_may_be_anything() -> None:
    assert Named(1, 2, "a") == Named(name="a", y=2, x=1)
    assert Named(1, name="a").y == 0
    with pytest.raises(ValueError, match="a name is needed"):
        Named(1, 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "misses arguments: x"),
        ((1, 2, 3), {}, "takes 2 arguments, not 3"),
        ((1,), {"x": 2}, "multiple values for argument 'x'"),
        ((1,), {"z": 2}, "unexpected keyword argument 'z'; its arguments: x, y"),
        ((), {"z": 2}, "unexpected keyword argument 'z'"),
        ((), {"y": 2}, "misses arguments: x"),
    ],
)
def test_wrong_arguments_are_refused(args: tuple[int, ...], kwargs: dict[str, int], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Point(*args, **kwargs)


def test_records_of_two_classes_differ_and_equal_ones_have_one_hash() -> None:
    assert Point(1) == Point(1, 0) != Point(2)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    assert Point(1, 0) != Named(1, 0, "a") and Point(1) != (1, 0)
    assert repr(Named(1, 2, "a")) == "Named(x=1, y=2, name='a')"


def test_its_signature_shows_the_fields() -> None:
    assert str(inspect.signature(Named)) == "(x: 'int', y: 'int' = 0, name: 'str' = '') -> None"


def test_a_record_does_not_change() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="a Point does not change: cannot set x"):
        point.x = 2  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError, match="cannot delete x"):
        del point.x
    assert point.replaced(y=5) == Point(1, 5) and point == Point(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        point.replaced(z=5)


def test_records_are_copied_and_pickled() -> None:
    point = Named(1, 2, "a")
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
