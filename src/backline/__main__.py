"""``python -m backline``: the command line."""

from backline.cli import app

if __name__ == "__main__":
    app(prog_name="backline")
