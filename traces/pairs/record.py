"""Records small programs with and without a change, and prints the peaks of the pairs in `pairs.toml`.

Needs `torch`, `numpy` and `zstandard`.
"""

import tomllib
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from models import Encoder, Gpt, ImageNet, Unet, perceptron
from recording import name_modules, phase, record, recorded_peak, write

STEPS = 6


@dataclass(frozen=True)
class Program:
    """A program that trains a model, or only runs its forward pass."""

    model: str
    batch: int
    fused: bool = True
    """The optimizer is one operator, without temporary tensors for each parameter."""
    fused_attention: bool = False
    """The scores of the attention in the encoder are never whole tensors."""
    checkpointed: bool = False
    """Each layer keeps only its input and makes its activations again in the backward pass."""
    chunks: int = 1
    """The number of parts in which logits and loss are made."""
    offloaded: bool = False
    """The state of the optimizer is elsewhere except during the optimizer's step."""
    shards: int = 1
    """The number of ranks that share the state of the optimizer. The program is the first of them."""
    gradients_kept: bool = False
    """Gradients are freed before the next backward pass and not after the optimizer's step."""
    output_kept: str = ""
    """Until when the program keeps the output of the model: the end of the `step`, or of the `run`."""


GPT, ENCODER = Program("gpt", 8), Program("encoder", 4, fused=False)
IMAGES, UNET = Program("images", 8), Program("unet", 9)

PROGRAMS = {
    "gpt": GPT,
    "gpt_half_batch": replace(GPT, batch=4),
    "gpt_chunked_loss": replace(GPT, chunks=8),
    "gpt_checkpointed": replace(GPT, checkpointed=True),
    "gpt_checkpointed_chunked": replace(GPT, checkpointed=True, chunks=8),
    "gpt_offloaded": replace(GPT, offloaded=True),
    "gpt_logits_kept": replace(GPT, output_kept="step"),
    "encoder": ENCODER,
    "encoder_half_batch": replace(ENCODER, batch=2),
    "encoder_checkpointed": replace(ENCODER, checkpointed=True),
    "encoder_offloaded": replace(ENCODER, offloaded=True),
    "encoder_sharded": replace(ENCODER, shards=4),
    "encoder_fused_attention": replace(ENCODER, fused_attention=True),
    "encoder_gradients_kept": replace(ENCODER, gradients_kept=True),
    "images": IMAGES,
    "images_half_batch": replace(IMAGES, batch=4),
    "images_checkpointed": replace(IMAGES, checkpointed=True),
    "images_outputs_kept": replace(IMAGES, output_kept="run"),
    "unet": UNET,
    "unet_third_batch": replace(UNET, batch=3),
    "unet_checkpointed": replace(UNET, checkpointed=True),
    "perceptron": Program("perceptron", 2048),
    "perceptron_half_batch": Program("perceptron", 1024),
}

Inputs = tuple[Tensor, ...]


def build(
    program: Program,
) -> tuple[nn.Module, Callable[[], Inputs], Callable[..., tuple[Tensor | None, Tensor]]]:
    """Returns the model, a function that makes inputs, and one that returns the output and the loss."""
    batch, checkpointed = program.batch, program.checkpointed
    match program.model:
        case "gpt":
            gpt = Gpt()
            return (
                gpt,
                lambda: (torch.randint(8192, (batch, 128)), torch.randint(8192, (batch, 128))),
                lambda x, targets: gpt(x, targets, checkpointed, program.chunks),
            )
        case "encoder":
            encoder = Encoder(program.fused_attention)

            def classify(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
                classes = encoder(x, checkpointed)
                return classes, F.cross_entropy(classes, targets)

            return encoder, lambda: (torch.randn(batch, 128, 256), torch.randint(10, (batch,))), classify
        case "images" | "unet":
            network = ImageNet() if program.model == "images" else Unet()

            def compare(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
                image = network(x, checkpointed)
                return image, F.mse_loss(image, targets)

            return network, lambda: (torch.randn(batch, 3, 48, 48), torch.randn(batch, 16, 48, 48)), compare
        case name:
            raise ValueError(f"there is no training of the model {name}")


class OffloadedState:
    """Keeps the tensors of an optimizer in memory that the recording does not see."""

    def __init__(self, optimizer: Adam) -> None:
        self._optimizer = optimizer
        self._elsewhere: list[tuple[dict[str, Tensor], str, numpy.ndarray]] = []

    def fetch(self) -> None:
        """Allocates the tensors and fills them."""
        for state, name, values in self._elsewhere:
            state[name] = torch.empty(values.shape).copy_(torch.from_numpy(values))
        self._elsewhere.clear()

    def store(self) -> None:
        """Copies the tensors elsewhere and frees them."""
        for state in self._optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                self._elsewhere.append((state, name, state.pop(name).numpy().copy()))


def first_shard(parameter: Tensor, shards: int) -> nn.Parameter:
    """Returns the first of equal parts of a parameter. It shares the parameter's memory."""
    flat = parameter.detach().flatten()
    return nn.Parameter(flat[: -(-len(flat) // shards)])


def train(program: Program) -> None:
    """Trains a model for some steps."""
    torch.manual_seed(0)
    kept: list[Tensor | None] = []
    with phase("init"):
        model, inputs, forward = build(program)
        name_modules(model)
        parameters = list(model.parameters())
        shards = [first_shard(p, program.shards) for p in parameters] if program.shards > 1 else parameters
        optimizer = Adam(shards, fused=program.fused)
        offloaded = OffloadedState(optimizer)
    for _ in range(STEPS):
        with phase("data"):
            batch = inputs()
        with phase("fwd"):
            output, loss = forward(*batch)
        if program.output_kept == "run" and output is not None:
            kept.append(output.detach())
        if program.output_kept != "step":
            output = None
        if program.gradients_kept:
            model.zero_grad()
        with phase("bwd"):
            loss.backward()
        output = None
        with phase("opt"):
            offloaded.fetch()
            if program.shards > 1:
                for shard, parameter in zip(shards, parameters, strict=True):
                    assert parameter.grad is not None
                    shard.grad = parameter.grad.flatten()[: len(shard)]
            optimizer.step()
            if program.shards > 1:
                optimizer.zero_grad()
            if program.offloaded:
                offloaded.store()
        if not program.gradients_kept:
            model.zero_grad()


def infer(program: Program) -> None:
    """Runs the forward pass of a perceptron for some batches."""
    torch.manual_seed(0)
    with phase("init"):
        model = perceptron()
        name_modules(model)
    for _ in range(STEPS):
        with phase("data"):
            x = torch.randn(program.batch, 1024)
        with torch.no_grad(), phase("fwd"):
            model(x)


def print_pairs(folder: Path) -> None:
    """Prints a table of the pairs whose recordings are in a folder."""
    pairs = tomllib.loads((Path(__file__).parent / "pairs.toml").read_text())["pair"]
    print("| base | changed | edit | base peak | changed peak | ratio |\n|---|---|---|--:|--:|--:|")
    for pair in pairs:
        base, changed = folder / pair["base"], folder / pair["changed"]
        if base.exists() and changed.exists():
            before, after = recorded_peak(base), recorded_peak(changed)
            names = f"{base.name.split('.')[0]} | {changed.name.split('.')[0]}"
            edits = ", ".join(f"`{edit}`" for edit in pair["edits"])
            print(f"| {names} | {edits} | {before} | {after} | {after / before:.3f} |")


def main() -> None:
    """Records programs into a folder and prints the peaks of the pairs that are there."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the recordings")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the programs to record (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(PROGRAMS):
        parser.error(f"no program is named {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    torch.set_num_threads(1)
    for name in arguments.names or PROGRAMS:
        program = PROGRAMS[name]
        run = infer if program.model == "perceptron" else train
        rows = record(partial(run, program))
        write(rows, arguments.folder / f"{name}.csv.zst", asdict(program) | {"steps": STEPS})
    print_pairs(arguments.folder)


if __name__ == "__main__":
    main()
