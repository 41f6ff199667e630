"""What the CDK's command runs (`cdk.json`): makes the templates, or says what is wrong with the settings."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Write templates to `cdk.out`; 1 when a setting is wrong or a rule of cdk-nag is broken."""
    from neuronbench_infra.keys import SettingsError

    try:
        from neuronbench_infra.app import make_app
        from neuronbench_infra.rules import findings

        assembly = make_app().synth()
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = findings(Path(assembly.directory))
    for text in found:
        print(f"error: {text}", file=sys.stderr)
    if not found:
        print(f"{len(assembly.stacks)} templates in {assembly.directory}", file=sys.stderr)
        for stack in assembly.stacks:
            print(f"  {stack.stack_name}: {stack.template_file}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
