"""PyTorch with its memory in a pool, on a device of 600 MiB: streams, threads, graphs, limits, figures, and memory that runs out."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import millpond
import torch

MIB = 1 << 20


def load(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def filled(value, bytes=MIB):
    """Returns a tensor with one value. The emulated driver has no kernels of PyTorch, so the elements are copied."""
    return torch.full((bytes,), value, dtype=torch.uint8).cuda()


def used():
    return millpond.torch.pool().stats()["allocated"]


class Plugged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        millpond.torch.enable()
        millpond.torch.enable()
        assert millpond.torch.is_enabled()

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        self.assertEqual(used(), 0)
        torch.cuda.empty_cache()
        self.assertEqual(millpond.torch.pool().stats()["reserved"], 0)

    def test_tensors_are_in_the_pool_with_their_tags(self):
        with millpond.tag("weights"):
            weights = load(10)
        rest = load(5)
        live = {live.tag: live.bytes for live in millpond.torch.pool().live()}
        self.assertEqual((live["weights"], sum(live.values())), (10 * MIB, 15 * MIB))
        self.assertIn("weights", [live.tag for live in millpond.leaks()])
        weights.copy_(filled(7, 10 * MIB))
        self.assertEqual(int(weights.cpu()[123]), 7)
        del weights, rest

    def test_sizes_of_nothing(self):
        empty = torch.empty(0, device="cuda")
        self.assertEqual(empty.numel(), 0)

    def test_running_out_is_pytorchs_error_with_a_post_mortem(self):
        with millpond.tag("activations"):
            held = [load(100) for _ in range(4)]
        for _ in range(3):
            with self.assertRaisesRegex(torch.OutOfMemoryError, "(?s)^CUDA out of memory. Tried to allocate 400 MiB.*activations"):
                load(400)
        with self.assertRaises(torch.OutOfMemoryError):
            load(1 << 30)
        del held
        load(400)

    def test_an_error_is_explained(self):
        with tempfile.TemporaryDirectory() as folder:
            page, told = os.path.join(folder, "run.html"), []
            with self.assertRaises(torch.OutOfMemoryError), millpond.catch_oom(page, tell=told.append):
                with millpond.tag("activations"):
                    held = [load(100) for _ in range(4)]
                load(400)
            del held
            self.assertIn("out of memory", told[0])
            self.assertTrue(os.path.exists(page))
            self.assertIn("activations", str(millpond.read(os.path.join(folder, "run.mpr")).report()))

    def test_figures_are_those_of_the_pool(self):
        torch.cuda.reset_peak_memory_stats()
        held = load(20)
        more = load(30)
        del more
        self.assertEqual(torch.cuda.memory_allocated(), 20 * MIB)
        self.assertEqual(torch.cuda.max_memory_allocated(), 50 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), 50 * MIB)
        self.assertIn("Allocated memory", torch.cuda.memory_summary())
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), 20 * MIB)
        self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 1.0)
        del held

    def test_a_memory_fraction_is_the_limit(self):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.25)
        try:
            self.assertEqual(millpond.torch.pool().limit, total // 4)
            with self.assertRaises(torch.OutOfMemoryError):
                load(200)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_a_block_is_reused_on_its_stream_at_once_and_elsewhere_after_its_work(self):
        side = torch.cuda.Stream()
        first = load(64)
        address = first.data_ptr()
        first.record_stream(side)
        del first
        again = load(64)
        del again
        torch.cuda.synchronize()
        self.assertEqual(used(), 0)
        with torch.cuda.stream(side):
            other = load(64)
            other.copy_(filled(1, 64 * MIB))
        del other
        self.assertNotEqual(address, 0)

    def test_threads_allocate_from_one_pool(self):
        errors = []

        def work(number):
            try:
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for at in range(300):
                        held = [filled(number, (at * 37 + size * 1009) % 5000 + 1) for size in range(4)]
                        held[at % 4].record_stream(torch.cuda.default_stream())
                        if at % 10 == 0 and any(bool((tensor.cpu() != number).any()) for tensor in held):
                            errors.append("a block was shared")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(errors, [])

    def test_the_memory_of_a_graph_keeps_its_addresses(self):
        stream = torch.cuda.Stream()
        source = filled(3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            # The first block of the graph is freed in the capture, and serves its second request.
            first = load(1)
            first.copy_(source)
            address = first.data_ptr()
            del first
            result = load(1)
            result.copy_(source)
        self.assertEqual(result.data_ptr(), address)
        del result
        # Nobody else gets the memory of the graph.
        others = [filled(9) for _ in range(20)]
        self.assertNotIn(address, [other.data_ptr() for other in others])
        torch.cuda.empty_cache()
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(all(int(other.cpu()[0]) == 9 for other in others))
        del others
        graph.reset()
        del graph, source

    def test_graphs_may_share_a_pool(self):
        graphs, shared = [], None
        source = filled(3)
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=shared):
                result = load(1)
                result.copy_(source)
            shared = shared or graph.pool()
            graphs.append((graph, result))
        for graph, _ in graphs:
            graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(all(int(result.cpu()[0]) == 3 for _, result in graphs))
        for graph, _ in graphs:
            graph.reset()
        del graphs, graph, result, source

    def test_the_allocator_cannot_be_changed_again(self):
        with self.assertRaisesRegex(RuntimeError, "MemPool is not available"):
            millpond.torch.mem_pool()


class Segments(unittest.TestCase):
    """Each program has its own process, because a process has one allocator."""

    def run_program(self, program, **environment):
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_mem_pool_takes_segments_from_a_pool(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "pool = millpond.DevicePool('300MiB')\n"
            "with torch.cuda.use_mem_pool(millpond.torch.mem_pool(pool)):\n"
            "    held = torch.empty(50 << 20, dtype=torch.uint8, device='cuda')\n"
            "    print(pool.stats()['allocated'] >> 20, torch.cuda.memory_allocated() >> 20)\n"
            "    try:\n"
            "        torch.empty(400 << 20, dtype=torch.uint8, device='cuda')\n"
            "    except torch.OutOfMemoryError as error:\n"
            "        print('refused')\n"
            "outside = torch.empty(50 << 20, dtype=torch.uint8, device='cuda')\n"
            "print(pool.stats()['allocated'] >> 20)\n"
        )
        self.assertEqual(printed, "50 50\nrefused\n50\n")

    def test_settings_of_the_environment_reach_the_pool(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "millpond.torch.enable()\n"
            "torch.empty(50 << 20, dtype=torch.uint8, device='cuda')\n"
            "print(millpond.torch.pool().limit >> 20)\n"
            "try:\n"
            "    torch.empty(200 << 20, dtype=torch.uint8, device='cuda')\n"
            "except torch.OutOfMemoryError:\n"
            "    print('refused')\n",
            MILLPOND_CONF="limit:100MiB",
        )
        self.assertEqual(printed, "100\nrefused\n")

    def test_wrong_settings_are_an_error_of_the_first_tensor(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "millpond.torch.enable()\n"
            "try:\n"
            "    torch.empty(50, device='cuda')\n"
            "except RuntimeError as error:\n"
            "    print(error)\n",
            MILLPOND_CONF="limt:100MiB",
        )
        self.assertIn("MILLPOND_CONF", printed)

    def test_a_program_runs_unchanged(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "train.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write("import torch\nheld = [torch.empty(40 << 20, dtype=torch.uint8, device='cuda') for _ in range(9)]\n")
            command = [sys.executable, "-m", "millpond", "run", "--pools", "--page", os.path.join(folder, "oom.html"), program]
            done = subprocess.run(command, env=os.environ | {"MILLPOND_CONF": "limit:100MiB"}, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("OutOfMemoryError: CUDA out of memory. Tried to allocate 40.0 MiB", done.stderr)
            self.assertIn("millpond: out of memory", done.stderr)
            self.assertTrue(os.path.exists(os.path.join(folder, "oom.mpr")))

    def test_a_segment_that_other_streams_use_is_reused_after_their_work(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "pool, free = millpond.DevicePool('300MiB'), []\n"
            "memory = millpond.torch.mem_pool(pool)\n"
            "source = torch.full((20 << 20,), 3, dtype=torch.uint8).cuda()\n"
            "side = torch.cuda.Stream()\n"
            "with torch.cuda.stream(side), torch.cuda.use_mem_pool(memory):\n"
            "    held = torch.empty(20 << 20, dtype=torch.uint8, device='cuda')\n"
            "side.synchronize()\n"
            "held.copy_(source)\n"
            "result = torch.empty_like(source)\n"
            "result.copy_(held)\n"
            "del held, memory\n"
            "torch.cuda.empty_cache()\n"
            "for _ in range(5):\n"
            "    pool.zeros(20 << 20, 'uint8', stream=side)\n"
            "print(int(result.cpu().min()), pool.stats()['allocated'])\n",
            MILLPOND_CUDA_EMU="memory:600M,version:13020,streams:seeded,strict:on,seed:2",
        )
        self.assertEqual(printed, "3 0\n")

    def test_the_memory_of_a_graph_goes_back_after_the_work_of_all_streams(self):
        for options in ("", ",without:vmm"):
            printed = self.run_program(
                "import millpond, torch\n"
                "millpond.torch.enable()\n"
                "source = torch.full((1 << 20,), 3, dtype=torch.uint8).cuda()\n"
                "graph = torch.cuda.CUDAGraph()\n"
                "with torch.cuda.graph(graph):\n"
                "    inside = torch.empty_like(source)\n"
                "    inside.copy_(source)\n"
                "result = torch.empty_like(source)\n"
                "graph.replay()\n"
                "graph.reset()\n"
                "result.copy_(inside)\n"
                "del inside\n"
                "print(int(result.cpu().min()), int(result.cpu().max()))\n",
                MILLPOND_CUDA_EMU=f"memory:600M,version:13020,streams:seeded,strict:on,seed:2{options}",
            )
            self.assertEqual(printed, "3 3\n")

    def test_too_large_in_a_capture_is_out_of_memory(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "millpond.torch.enable()\n"
            "held = torch.empty(100 << 20, dtype=torch.uint8, device='cuda')\n"
            "try:\n"
            "    with torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
            "        torch.empty(800 << 20, dtype=torch.uint8, device='cuda')\n"
            "except torch.OutOfMemoryError as error:\n"
            "    print('captured' in str(error), 'untagged' in str(error))\n"
        )
        self.assertEqual(printed, "False True\n")

    def test_too_late_is_an_error(self):
        printed = self.run_program(
            "import millpond, torch\n"
            "torch.empty(50, device='cuda')\n"
            "try:\n"
            "    millpond.torch.enable()\n"
            "except RuntimeError as error:\n"
            "    print(error)\n"
        )
        self.assertIn("at the start of the program", printed)


if __name__ == "__main__":
    unittest.main()
