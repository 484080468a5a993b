"""Two threads load data, and the function of one of them runs out of memory. Its error reaches the program."""

from concurrent.futures import ThreadPoolExecutor

import millpond
import torch


@millpond.catch_oom("workers.html")
def load(count):
    return [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]


with ThreadPoolExecutor(1) as threads:
    jobs = [threads.submit(load, count) for count in (6, 10)]
    data = [job.result() for job in jobs]
print("finished")
