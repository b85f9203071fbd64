"""Links for the roles in docstrings: ``:func:`simcoll.bind``` becomes a link where the site has
that name, and code elsewhere.
"""

import re

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?([\w.]+)</code>")


def on_page_content(html, **_):
    return ROLE.sub(r'<autoref optional identifier="\1"><code>\1</code></autoref>', html)
