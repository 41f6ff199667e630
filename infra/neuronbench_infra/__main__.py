"""What the CDK's command runs (`cdk.json`): makes the templates, or says what is wrong with the settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write templates to `cdk.out`; 1 when a setting is wrong or a rule of cdk-nag is broken, 2 for wrong usage."""
    from neuronbench_infra.keys import SettingsError

    given = sys.argv[1:] if arguments is None else list(arguments)
    if given:  # before the import that starts node
        return _explain(given)
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


def _explain(given: Sequence[str]) -> int:
    """What this is; it has settings, and takes no arguments."""
    from neuronbench_infra.keys import usage

    if set(given) <= {"-h", "--help"}:
        print(usage())
        return 0
    print(f"error: {' '.join(given)}: no arguments are taken; settings are told as --help says", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
