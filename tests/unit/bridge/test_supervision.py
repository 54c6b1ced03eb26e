"""What goes on where its caller waits no longer."""

import asyncio
import gc

from bridge.supervision import outlasting


def test_work_goes_on_without_who_waits_for_it_and_nobody_complains_of_its_error() -> None:
    complaints: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context))
        work = loop.create_future()
        waiting = asyncio.create_task(outlasting(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not work.done()
        work.set_exception(OSError("away"))
        await asyncio.sleep(0)
        del work, waiting
        gc.collect()

    asyncio.run(run())
    assert not complaints
