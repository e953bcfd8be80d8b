"""The style of a report's page: light or dark as the reader has it, a phone's width or a desk's, and paper."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --soft: #57606a; --line: #d0d7de; --box: #f6f8fa;
        --bad: #b42318; --good: #1a7f37; --link: #0059b3; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ed; --page: #14171b; --soft: #a2abb5; --line: #3a414a; --box: #1d2127; --bad: #ff8a7a; --good: #6fdd8b;
          --link: #79b8ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text);
       background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
p { margin: 0.5rem 0; }
a { color: var(--link); }
nav a { margin-right: 0.9rem; display: inline-block; }
.soft, figcaption { color: var(--soft); font-size: 0.875rem; }
.bad { color: var(--bad); } .good { color: var(--good); }
code, pre { font: 0.875em/1.4 ui-monospace, monospace; }
pre { background: var(--box); padding: 0.75rem; white-space: pre-wrap; margin: 0.5rem 0; }
.notes { border-left: 4px solid var(--bad); background: var(--box); padding: 0.25rem 0.75rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.5rem; margin: 0.75rem 0; }
dl div { background: var(--box); padding: 0.5rem 0.75rem; }
dt { color: var(--soft); font-size: 0.875rem; } dd { margin: 0; font-weight: 600; }
figure { margin: 1rem 0; max-width: 34rem; }
figure svg { display: block; width: 100%; height: auto; color: var(--text); }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; margin: 0.5rem 0; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
details { margin: 0.5rem 0; } summary { cursor: pointer; color: var(--link); }
@media screen and (max-width: 640px) {
  thead { display: none; }
  tr { display: block; padding: 0.4rem 0; border-bottom: 1px solid var(--line); }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: 0.1rem 0; text-align: right; }
  td::before { content: attr(data-head); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
  td:empty { display: none; }
  td.first { display: block; text-align: left; font-weight: 600; } td.first::before { content: none; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  figure, tr, dl div { break-inside: avoid; } h2 { break-after: avoid; }
}
"""
