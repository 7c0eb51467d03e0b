"""List, show, copy, check and create configs.

erjepa configs ls                          # names and first lines
erjepa configs show NAME [key=value ...]   # all keys, in full
erjepa configs cp NAME FILE [key=value ...]
erjepa configs validate FILE [key=value ...]
erjepa configs init FILE --data PAIRS [--from NAME] [key=value ...]   # for your own data
"""

import argparse
import inspect
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import counted, one_line

_HEAD = """\
# {config}, on {data}: {columns}.
#
# Train, then score:
#   tune run erjepa_recipe --config {file}
#   tune run erjepa_eval --config {file}
#
# output_dir gets checkpoints, logs and scores. validation.size is the fraction of the pairs that is
# held out for scoring. To score other pairs, set eval_split to test and eval_dataset to a section
# like dataset. All other keys are inherited from {config}; to show them:
#   erjepa configs show {file}

"""


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa configs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ls", description="List the packaged configs.")
    for name, description in (
        ("show", "Print a config with all inherited keys."),
        ("cp", "Copy a config with all inherited keys to a file."),
        ("validate", "Check that every key is known and every value is valid."),
    ):
        command = commands.add_parser(name, description=description)
        command.add_argument("config", help="path, or name of a packaged config")
        if name == "cp":
            command.add_argument("file", type=Path, help="YAML file to write")
        command.add_overrides()
    command = commands.add_parser(
        "init", description="Write a config for your own pairs."
    )
    command.add_argument("file", type=Path, help="where to write the config")
    command.add_argument(
        "--data",
        metavar="PAIRS",
        required=True,
        help="file, folder, URL, or dataset of the hub",
    )
    command.add_argument(
        "--from",
        dest="config",
        metavar="NAME",
        default="smollm2_135m_continual",
        help="config to start from (default: %(default)s)",
    )
    command.add_set_option(
        "another key, such as dataset.column_map='{input: A, output: B}'; also without --set"
    )
    # Not by add_overrides: argparse takes key=value after an option only outside of subcommands.
    args, given = parser.parse_known_args(arguments)
    is_init = args.command == "init"
    if unknown := [word for word in given if word.startswith("-") or not is_init]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if is_init:
        args.overrides = [*args.overrides, *given]
    with parser.errors(args):
        if args.command == "ls":
            _list()
        elif args.command == "init":
            _init(args)
        else:
            _read(args)


def _list() -> None:
    from erjepa.configs import config_names, config_path

    names = config_names()
    width = max(map(len, names))
    for name in names:
        first = Path(config_path(name)).read_text("utf-8").partition("\n")[0]
        print(f"{name:<{width}}  {first.removeprefix('# ')}")


def _read(args: argparse.Namespace) -> None:
    from erjepa.configs import load
    from erjepa.configs.text import as_yaml

    if args.command == "validate":
        cfg = load(args.config, args.overrides)
        cfg.loss.build()  # whose keys may exclude each other
        print(f"{args.config}: every key is known and every value is valid")
        return
    text = as_yaml(args.config, args.overrides)
    if args.command == "show":
        print(text, end="")
        return
    with args.file.open("x", encoding="utf-8") as file:
        file.write(text)
    print(f"Wrote {args.config} to {args.file}")


def _init(args: argparse.Namespace) -> None:
    """Write a config for the user's data, with columns detected in the first record."""
    import yaml

    from erjepa.configs import merge, merged, read, with_overrides
    from erjepa.datasets import paired_dataset
    from erjepa.datasets.messages import messages_of, not_read
    from erjepa.datasets.records import flat, load_records
    from erjepa.utils.checked import checked

    if args.file.exists():
        raise FileExistsError(f"{args.file} exists; choose another name")
    data = Path(args.data)
    source = str(data.absolute()) if data.exists() else args.data
    component = "erjepa.datasets.paired_dataset"
    output_dir = args.file.stem
    while Path(output_dir).exists():  # such as the data
        output_dir += "_run"
    inherited = merged(args.config)
    starts: dict[str, Any] = {
        key: None for key in ("continue_from", "init_from") if inherited.get(key)
    }
    if (inherited.get("replay") or {}).get("init_from"):
        starts["replay"] = {"init_from": None}
    values = with_overrides(
        {
            "output_dir": output_dir,
            **starts,  # not those of an earlier run whose config this is
            "dataset": {"_component_": component, "source": source},
            "eval_dataset": None,
            "validation": {"size": 0.1},
        },
        args.overrides,
    )
    dataset = values["dataset"]
    if dataset["_component_"] != component:
        other = dataset["_component_"]
        keys = [f"dataset={other}", f"dataset.source={args.data}"]
        command = shlex.join(
            ["erjepa", "configs", "cp", args.config, str(args.file), *keys]
        )
        raise ValueError(f"init is for {component}; for another dataset: {command}")
    own = {"_component_", *inspect.signature(paired_dataset).parameters} - {"split"}
    of_the_hub = {key: value for key, value in dataset.items() if key not in own}
    records = flat(load_records(source, **of_the_hub))
    given = dataset.get("column_map") or {}
    column_map = checked(dict[str, str], given, "dataset.column_map")
    columns = messages_of(records, column_map)
    first = records[0]
    try:
        columns(first.fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{first.where}: {error}") from None
    dataset["column_map"] = columns.columns
    cfg = read(merge(inherited, values))
    if cfg.eval_dataset is None and cfg.validation.size:
        values.setdefault("eval_split", "validation")
    file = shlex.quote(str(args.file))
    head = _HEAD.format(
        config=args.config, data=data.name, columns=one_line(str(columns)), file=file
    )
    values = {"defaults": _defaults(args.config, args.file), **values}
    with args.file.open("x", encoding="utf-8") as output:
        output.write(head)
        yaml.safe_dump(values, output, sort_keys=False, allow_unicode=True)
    unread = ", ".join(not_read(records, columns)) or "nothing"
    print(
        f"{args.data}: {counted(len(records), 'record')}; {columns}; not read: {unread}. "
        "Train with"
    )
    print(f"  tune run erjepa_recipe --config {file}")
    if Path(args.config).is_dir():
        start = shlex.quote(f"continue_from={args.config}")
        print(f"or, with what {args.config} learned, add {start}")


def _defaults(config: str, file: Path) -> str:
    """Return the value of ``defaults`` with which ``file`` inherits from ``config``.

    Raises:
        FileExistsError: if a file beside it has the name of the packaged config.
    """
    from erjepa.configs import config_names, config_path

    if config not in config_names():
        return str(Path(config_path(config)).absolute())
    beside = file.parent / f"{config}.yaml"
    if beside.exists():
        raise FileExistsError(
            f"{file} would inherit from {beside} instead of the packaged {config}; choose "
            "another folder"
        )
    return config
