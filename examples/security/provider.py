"""python -m examples.security.provider FOLDER"""

import asyncio
import sys
from pathlib import Path

from steelyard import Credentials, Provider, current_call
from steelyard.security import allow, deny

from .contract import Ledger


class Book(Ledger):
    def __init__(self) -> None:
        self._cents = {"coffee": 1250}

    async def balance(self, account: str) -> int:
        return self._cents[account]

    async def transfer(self, account: str, cents: int) -> int:
        call = current_call()
        who = call.caller.name if call is not None and call.caller is not None else "nobody"
        print(f"{who} moves {cents} cents into {account}", flush=True)
        self._cents[account] += cents
        return self._cents[account]


async def main(folder: Path) -> None:
    name = "provider.bank.example"
    credentials = Credentials(
        ca=folder / "ca.pem",
        certificate=folder / f"{name}.pem",
        key=folder / f"{name}.key.pem",
        require_client_certificate=True,
    )
    access = [
        allow("dns:*.bank.example", "bank.Ledger"),
        allow("dns:*", "bank.Ledger", "balance"),
        deny("dns:evil.bank.example"),
    ]
    async with Provider(credentials=credentials, access=access) as provider:
        await provider.export(Book(), token=True)
        print(f"bank.Ledger at {provider.address}", flush=True)
        await provider.serve()
        print(f"refused: {dict(provider.statistics().security.denied)}", flush=True)


if len(sys.argv) != 2:
    sys.exit(__doc__)
asyncio.run(main(Path(sys.argv[1])))
