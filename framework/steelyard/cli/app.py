"""The commands and their options. Only texts and built-in types here; what a command does is imported when it runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from . import options
from .failure import ASKED_WRONGLY, reported, usage
from .lazy import LazyGroup

app = typer.Typer(
    name="steelyard",
    cls=LazyGroup,
    help="RPC that sends each call to the right node of an unequal cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(_version_line())
        raise typer.Exit


def _version_line() -> str:
    import platform

    from steelyard import __version__

    return f"steelyard {__version__} (Python {platform.python_version()}, {platform.system()} {platform.machine()})"


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """RPC that sends each call to the right node of an unequal cluster."""


@app.command()
def version() -> None:
    """Show the version."""
    typer.echo(_version_line())


@app.command()
def serve(
    services: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:NAME",
            help="What to serve: a class without required arguments, an object, or a function that makes one.",
        ),
    ],
    registry: options.Registry = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag of your own; repeatable.")
    ] = None,
    hw: Annotated[
        list[str] | None,
        typer.Option(
            "--hw",
            metavar="KEY=VALUE",
            help="Overrides a fact, see `steelyard hardware`: kind, model, cores, quota, memory_bytes...; repeatable.",
            autocompletion=options.complete_hardware,
        ),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Where the machine stands; by default what $STEELYARD_ZONE says.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on and to register; by default the one that reaches the registry."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    weight: Annotated[int, typer.Option(help="Static weight: 100 is normal, 0 takes no traffic.")] = 100,
    application: Annotated[str, typer.Option(help="The application's name, for operators.")] = "",
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="Processes, each with a port of its own (from --port on); kept by a parent."
        ),
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads for handlers that block; by default cores + 4, at most 32.")
    ] = None,
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    tls_require_client: Annotated[
        bool,
        typer.Option(
            "--tls-require-client",
            envvar="STEELYARD_TLS_REQUIRE_CLIENT_CERTIFICATE",
            help="Only callers whose certificate --tls-ca vouches for (mutual TLS).",
        ),
    ] = False,
    registry_wait: options.RegistryWait = "10",
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long accepted calls may take on the way out.")
    ] = 10.0,
    telemetry: Annotated[
        str | None, typer.Option(metavar="otlp|none", help="Send traces and metrics to an OpenTelemetry collector.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning or error.", autocompletion=options.complete_log_level)
    ] = "info",
    is_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document when everything is registered.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Serve one or more services until SIGTERM or Ctrl-C; then drain.

    Modules are looked for in the current directory first.

        [bold]steelyard serve examples.ctr.model:CtrModel --tag pool=ads[/bold]

    With --json: {"pid", "address", "registry", "services": [{"service", "methods", "weight", "zone", "tags"}]}; with
    --workers: {"pid", "registry", "workers": \\[one such document each]}.
    """
    from .logs import log_to_stderr

    with reported("serve", is_debug=debug):
        log_to_stderr("debug" if debug else log_level)
        settings: dict[str, Any] = {
            "registry": registry,
            "host": host,
            "port": port,
            "application": application,
            "tags": options.pairs(tag or (), "--tag"),
            "hardware": options.pairs(hw or (), "--hw"),
            "zone": zone,
            "weight": weight,
            "threads": threads,
            "telemetry": telemetry,
            "registry_wait_s": options.wait_s(registry_wait),
            "drain_s": drain,
            "credentials": options.credentials(tls_ca, tls_certificate, tls_key, requires_client=tls_require_client),
        }
        from . import serve as serving

        serving.run(serving.Serving(targets=services, settings=settings, workers=workers), is_json=is_json)


@app.command()
def call(
    target: Annotated[
        str,
        typer.Argument(metavar="SERVICE.METHOD", help="With group and version: GROUP/SERVICE:VERSION.METHOD"),
    ],
    arguments: Annotated[
        str,
        typer.Option(
            "--json",
            "-j",
            metavar="JSON",
            help='The arguments: a list, [7, [1, 2]], or by name, {"user_id": 7}; - reads standard input.',
        ),
    ] = "[]",
    registry: options.Registry = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="The call's deadline.")] = 10.0,
    attach: Annotated[
        list[str] | None, typer.Option("--attach", metavar="KEY=VALUE", help="Travels with the call; repeatable.")
    ] = None,
    where: options.Where = None,
    policy: Annotated[str, typer.Option(help="The balancing policy.", autocompletion=options.complete_policy)] = "dual",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="json|text", help="By default text on a terminal, and json elsewhere."),
    ] = None,
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    tls_server_name: options.TlsServerName = None,
    bearer_file: options.BearerFile = None,
    registry_wait: options.RegistryWait = "10",
    debug: options.Debug = False,
) -> None:
    """Call one method, without its contract.

        [bold]steelyard call ads.Ctr.predict --json '[7, [0.1, 0.2, 0.3, 0.4]]'[/bold]

    Text stands for bytes (base64), datetimes (ISO 8601), UUIDs and Decimals, and lists stand for arrays. A stream is
    shown item by item; with --output json it is one list.

    A call that fails ends with exit code 1 and prints "STATUS: message (node ...)", or "Name: message" for an
    exception that the service declares; with --output json it prints {"status", "message", "node", "is_remote",
    "is_declared"} instead, where a null status means that no call was made.
    """
    from .logs import log_to_stderr
    from .output import is_terminal, terminal_width

    is_json = _is_json(output, is_person=is_terminal(sys.stdout))
    log_to_stderr("debug" if debug else "error")
    from . import call as calling

    show = calling.Show(is_json=is_json, width=terminal_width())
    with reported("call", is_debug=debug, on_error=show.failed if is_json else None):
        service, method = calling.split_target(target)
        asked = calling.Call(
            service=service,
            method=method,
            arguments=options.arguments(sys.stdin.read() if arguments == "-" else arguments),
            registry=registry,
            timeout_s=timeout,
            attachments=options.pairs(attach or (), "--attach"),
            expression=where,
            policy=policy,
            registry_wait_s=options.wait_s(registry_wait),
            credentials=options.credentials(tls_ca, tls_certificate, tls_key, tls_server_name),
            bearer_file=bearer_file or None,
        )
        import asyncio

        asyncio.run(calling.run(asked, show))


@app.command()
def nodes(
    service: Annotated[
        str | None, typer.Argument(help="Only this service: its name, or its key GROUP/NAME:VERSION.")
    ] = None,
    registry: options.Registry = None,
    where: options.Where = None,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw the table anew each second.")] = False,
    policy: Annotated[
        str, typer.Option(help="The policy whose lists are shown.", autocompletion=options.complete_policy)
    ] = "dual",
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    tls_server_name: options.TlsServerName = None,
    registry_wait: options.RegistryWait = "10",
    debug: options.Debug = False,
) -> None:
    """Show what is registered: nodes, hardware, live load, and where a balancer would put them.

    Each node is asked for its load (up to 1.5 s). "list" and "flow" are what the policy makes of these loads, seen
    from here; each consumer has lists of its own, which also know how its calls went.

    With --json: {"registry", "observed_at", "observer": {"policy", "note"}, "services": [{"service", "is_stale",
    "skipped", "load_ref", "nodes": [{"address", "state", "zone", "weight", "application", "protocol", "started_at",
    "methods", "tags", "hardware": {"kind", "model", "cores", "quota", "memory_bytes", "accelerators"}, "load":
    {"status": "reported" | "no report" | "unreachable", "reason", "utilization", "in_flight", "queue_depth", "age_s"},
    "observer": {"list", "flow_ratio", "share", "base_share", "passes", "reason"}}]}]}. What is not known is null; sizes
    are bytes, shares and utilizations 0 to 1, times ISO 8601 in UTC. Keys are only ever added.
    """
    from .logs import log_to_stderr

    with reported("nodes", is_debug=debug, on_error=_json_error if is_json else None):
        if watch and is_json:
            raise usage("--watch and --json: a watch is no single document; use --json in a loop of your own")
        log_to_stderr("debug" if debug else "error")
        from . import nodes as listing

        asked = listing.Asked(
            registry=registry,
            service=service,
            expression=where,
            policy=policy,
            registry_wait_s=options.wait_s(registry_wait),
            credentials=options.credentials(tls_ca, tls_certificate, tls_key, tls_server_name),
        )
        listing.run(asked, is_json=is_json, is_watch=watch)


@app.command()
def sim(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            help="Names of shipped scenarios, or TOML files; none: list those that ship.",
            autocompletion=options.complete_scenario,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="all, or names separated by commas; with settings: name:setting=value;setting=value",
            autocompletion=options.complete_policies,
        ),
    ] = "all",
    seeds: Annotated[int, typer.Option(help="Paired runs: with each, all policies see the same calls.")] = 8,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Every run's numbers; - prints them instead of tables.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Load per node over time as .png, .svg or .html (first seed).")
    ] = None,
    differences: Annotated[
        bool, typer.Option("--differences", help="Paired differences to dual, with their 95 % intervals, for means.")
    ] = False,
    gates: Annotated[bool, typer.Option("--gates", help="Fail when a gate of a scenario is not met.")] = False,
    report: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Rewrite results.csv and results.md there.")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Run balancing policies side by side in virtual time.

    The same calls for every policy, the policies' own code, thousands of nodes on one core.

        [bold]steelyard sim sinkhole --policy dual,p2c --seeds 4 --plot sinkhole.png[/bold]

    Numbers are means over seeds; a sign behind one compares it with dual: + better, - worse, = a tie within the noise.
    """
    with reported("sim", is_debug=debug):
        from . import sim as simulating

        simulating.run(
            simulating.Asked(
                scenarios=scenarios or [],
                policies=policy,
                seeds=seeds,
                jobs=jobs,
                json_path=json_path,
                plot=plot,
                report=report,
                is_gated=gates,
                shows_differences=differences,
            )
        )


@app.command()
def registry(
    registry: options.Registry = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Check the embedded registry's file; remove ended and unreadable entries."),
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    registry_wait: options.RegistryWait = "10",
    debug: options.Debug = False,
) -> None:
    """Show what a registry holds, without calling anybody; check and clean the embedded one.

    With --json: {"registry", "keeps_rules", "services": [{"interface", "nodes": [{"address", "state"}], "skipped",
    "is_stale"}]}; with --repair {"registry", "is_sound", "expired", "unreadable"}. Living processes restore their own
    entries, so that repairing takes nothing from them.
    """
    from .logs import log_to_stderr

    with reported("registry", is_debug=debug, on_error=_json_error if is_json else None):
        log_to_stderr("debug" if debug else "error")
        from . import registry as listing

        if repair:
            listing.run_repair(registry, is_json=is_json)
            return
        import asyncio

        asked = listing.Asked(registry=registry, registry_wait_s=options.wait_s(registry_wait))
        listing.show(asyncio.run(listing.look(asked)), is_json=is_json)


@app.command()
def hardware(
    hw: Annotated[
        list[str] | None,
        typer.Option(
            "--hw",
            metavar="KEY=VALUE",
            help="Overrides one fact, as for serve; repeatable.",
            autocompletion=options.complete_hardware,
        ),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of lines.")] = False,
    debug: options.Debug = False,
) -> None:
    """Show what a provider started here would say of this machine, and how busy it is now.

    It watches for a second. Each hw. name can be overridden: [bold]steelyard serve ... --hw cores=4 --hw numa=2[/bold].

    With --json: {"hardware": {"kind", "model", "cores", "quota", "memory_bytes", "accelerators"}, "facts": {"hw.arch",
    ...}, "zone", "utilization": {"cpu", ...}, "has_nvml"}. What is not known is null or absent.
    """
    with reported("hardware", is_debug=debug, on_error=_json_error if is_json else None):
        from . import hardware as showing

        showing.run(options.pairs(hw or (), "--hw"), is_json=is_json)


def _json_error(error: BaseException) -> None:
    from .output import error_document, write_document

    write_document(error_document(error))


def _is_json(output: str | None, *, is_person: bool) -> bool:
    if output is None:
        return not is_person
    if output not in ("json", "text"):
        typer.echo(f"steelyard call: --output takes json or text, not {output!r}", err=True)
        raise typer.Exit(ASKED_WRONGLY)
    return output == "json"
