"""The bill of materials of an environment as CycloneDX 1.5: every installed distribution with
version and licence, sorted.
"""

import json
import sys
from importlib.metadata import distributions


def main() -> None:
    """Print it."""
    found = {}
    for each in distributions():
        name, version = each.metadata["Name"], each.version
        licence = each.metadata.get("License-Expression") or each.metadata.get("License") or ""
        found[name.lower()] = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
            **(
                {"licenses": [{"license": {"name": licence.splitlines()[0][:100]}}]}
                if licence.strip()
                else {}
            ),
        }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [found[name] for name in sorted(found)],
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
