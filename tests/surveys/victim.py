"""Runs surveys in children of its own, each of which may be killed; a test writes the orders."""

import json
import os
import resource
import signal
import sys
import time

import torch

import gattn
from gattn.errors import GattnError
from gattn.surveys.run.running import survey
from gattn.surveys.store import queue

TEXTS = [f"The dog number {n} chased the cat. " * (1 + n % 3) for n in range(60)]
TEXTS[3] = ""
STEPS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open"}


def kill_at(step, folder):
    """Kill this process just before it changes the folder once more."""
    seen = 0

    def watch(event, arguments):
        nonlocal seen
        if event not in STEPS or not str(arguments[0]).startswith(folder):
            return
        if event == "open" and not arguments[2] & os.O_CREAT:
            return
        if event == "os.remove" and not os.path.exists(arguments[0]):
            return
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    sys.addaudithook(watch)


def obey(order, model):
    if "step" in order:
        kill_at(order["step"], order["out"])
    if "largest" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest"], resource.RLIM_INFINITY))
    texts = TEXTS[: order.get("texts")]
    try:
        survey(texts, model, out=order["out"], analyses=[], scores=True, progress=False)
    except GattnError as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        return 1
    return 0


def main():
    torch.set_num_threads(1)
    queue.MOST_TEXTS = 3
    model, _ = gattn.load_model()
    gattn.capture(TEXTS[0], model)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(obey(order, model))
        if "seconds" in order:
            time.sleep(order["seconds"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
