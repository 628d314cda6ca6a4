"""Maps a function over items on the machines of a Dask cluster. Imports neither torch nor MLIR.

Workers need this package, and the same files at the same paths. The items of a lost worker go to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError

Item = TypeVar("Item")
Result = TypeVar("Result")

INSTALL_COMMAND = 'pip install "buddy-tui[cluster]"'
# Seconds in which a scheduler must answer, and the first worker must connect to it.
CONNECT_TIMEOUT = 10.0
# An item fails if more than this number of workers are lost while they process it.
RETRIES = 3


class ClusterError(BuddyError):
    """The cluster cannot be used, or failed on an item; `diagnostic` says why, and what to do."""


def import_distributed() -> ModuleType:
    """Returns Dask's package. Raises `ClusterError` if it is not installed."""
    try:
        import distributed as package
    except ImportError as error:
        raise ClusterError(Diagnostic("a Dask cluster needs the package distributed", todo=INSTALL_COMMAND)) from error
    return package


def no_scheduler_error(address: str, error: Exception) -> ClusterError:
    """Returns the error for an address at which no scheduler answers; `error` is the reason."""
    todo = "start one with `dask scheduler` and `dask worker ADDRESS`"
    return ClusterError(Diagnostic(f"no Dask scheduler answers at {address}", str(error), todo))


def no_workers_error(address: str) -> ClusterError:
    """Returns the error for the scheduler at `address`, to which no worker has connected."""
    todo = f"start one with `dask worker {address}`"
    return ClusterError(Diagnostic(f"the cluster at {address} has no workers", todo=todo))


def map_on_cluster(
    address: str,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    report: Callable[[str], None] = lambda _text: None,
) -> Iterator[tuple[Item, Result]]:
    """Yields each item with the result of `function`, in the order of completion.

    `function` is a module-level function of plain values. `report` is called with a text about the size of the cluster.
    Raises `ClusterError` if the package `distributed` is missing, the cluster at `address` cannot be reached or has no
    workers, `function` raises, or too many workers are lost on one item.
    """
    package = import_distributed()
    try:
        client = package.Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise no_scheduler_error(address, error) from error
    with client, client.as_current():
        try:
            client.wait_for_workers(1, timeout=CONNECT_TIMEOUT)
        except TimeoutError as error:
            raise no_workers_error(address) from error
        threads = sum(client.nthreads().values())
        report(f"{len(items)} on {threads} threads of {len(client.nthreads())} workers")
        futures = client.map(function, items, pure=False, retries=RETRIES)
        item_of = dict(zip(futures, items, strict=True))
        for future in package.as_completed(futures):
            yield item_of[future], _result_or_error(future, item_of[future])


def _result_or_error(future: Any, item: object) -> Any:
    """Returns the result of a future. Raises `ClusterError` if the function raised, or workers were lost."""
    try:
        return future.result()
    except Exception as error:
        what = f"the cluster failed on {item}: {type(error).__name__}: {error}"
        raise ClusterError(Diagnostic(what, "a worker", "see the worker's log")) from error
