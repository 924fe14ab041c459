"""Carries the KV of a prompt in a file: computed once, used by other processes and machines with the same model.

'import' puts the pages into the tiers that outlive the command, where 'run' and 'chat' find them. Import only files of
those whom you trust with the answers.
"""

import argparse
import json
from pathlib import Path

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.prompts import encode_prompt, has_chat_template, read_prompts
from kvpager.config import HostTier, Options, format_size
from kvpager.errors import ConfigError

_ACTIONS = ("export", "import")
_ACTIONS_HELP = """actions:
  export FILE PROMPT    compute the prompt, unless a tier has it, and write its whole pages
  import FILE           put them into the tiers given with --tier"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("path", metavar="FILE", help="the prefix file")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="export: the text")
    parser.add_argument("--file", metavar="FILE", help="export: the text is in this file; - is standard input")
    parser.add_argument("--system", metavar="TEXT", help="export: instructions that go before the prompt")
    parser.add_argument("--raw", action="store_true", help="export: without the model's chat template")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options, action = chosen_options(arguments), arguments.action
    if action not in _ACTIONS:
        raise ConfigError(f"unknown action {action!r}; {did_you_mean(action, _ACTIONS)}")
    tokens = _export(arguments, options) if action == "export" else _import(arguments, options)
    size = Path(arguments.path).stat().st_size
    done = {"export": "written", "import": "put into the tiers"}[action]
    if arguments.json:
        print(json.dumps({"path": arguments.path, "tokens": tokens, "bytes": size}))
    else:
        print(f"{tokens} tokens ({format_size(size)}) {done}")
    return 0


def _export(arguments: argparse.Namespace, options: Options) -> int:
    """The tokens whose KV is in the file."""
    given = [] if arguments.prompt is None else [arguments.prompt]
    prompts = read_prompts(given, arguments.file, lines=False)
    if len(prompts) > 1:
        raise ConfigError("a prefix file holds one prompt; give it as an argument or with --file, not both")
    from kvpager.cache.prefix_file import export_prefix
    from kvpager.cli.session import open_engine
    from kvpager.engine.sampling_params import Sampling

    with open_engine(options) as engine:
        chat = has_chat_template(engine) and not arguments.raw
        tokens = encode_prompt(engine, prompts[0], chat=chat, system=arguments.system)
        next(iter(engine.generate([tokens], Sampling(max_tokens=1))))
        return export_prefix(engine.cache, tokens, arguments.path)


def _import(arguments: argparse.Namespace, options: Options) -> int:
    if arguments.prompt or arguments.file or arguments.system or arguments.raw:
        raise ConfigError("a prompt and how to read it belong to 'export'; 'import' takes the file alone")
    if all(isinstance(tier, HostTier) for tier in options.tiers):
        raise ConfigError("'import' needs a tier that outlives this command; add --tier disk=FOLDER,size=200GiB")
    from kvpager.cache.prefix_file import import_prefix
    from kvpager.cli.session import open_engine

    with open_engine(options) as engine:
        return import_prefix(engine.cache, arguments.path)
