"""Ways to break the library, each with the tests that must notice; `test_mutations.py` runs them.

Fifteen are the switches of `transformer_lib.lessons.bugs`, which learners turn on too. The others change the
source of one module, in memory, while it is imported: nothing is written. pytest loads this file as a plugin (`-p
mutations`), and the environment variable MUTATION names the one that is on.
"""

import contextlib
import importlib.machinery
import os
import sys
from dataclasses import dataclass

FUTURE = "test_attention.py::test_no_position_sees_its_future_bit_for_bit"
CUTS = "test_generation.py::test_cuts_by_hand"
CHUNKS = "test_kv_cache.py::test_the_readable_path_reads_the_same_cache"
LLAMA = "test_reference.py::test_llama"
NORMS = "test_reference.py::test_norms_are_torchs_on_vectors_of_any_variance"
PADDED = "test_attention.py::test_padding_changes_neither_output_nor_loss_nor_gradient"


@dataclass(frozen=True)
class Mutation:
    """sentence: what is wrong. tests: those that must fail. The change is a bug of `lessons.bugs` with this name, or in
    `module` each text of `changes` becomes another."""

    name: str
    tests: tuple[str, ...]
    sentence: str = ""
    module: str | None = None
    changes: tuple[tuple[str, str], ...] = ()

    def mutated(self, source: str) -> str:
        for old, new in self.changes:
            if source.count(old) != 1:
                raise ValueError(
                    f"mutation {self.name}: {old!r} stands {source.count(old)} times in {self.module}, not once."
                )
            source = source.replace(old, new)
        return source

    def turn_on(self, until: contextlib.ExitStack) -> None:
        """Until that is closed."""
        if self.module is None:
            from transformer_lib.lessons.bugs import BUGS

            until.enter_context(BUGS[self.name]())
        elif self.module in sys.modules:
            raise RuntimeError(f"{self.module} is imported already, so mutation {self.name} would change nothing.")
        else:
            sys.meta_path.insert(0, Finder(self))


class Finder:
    """Finds one module, the mutated one."""

    def __init__(self, mutation: Mutation):
        self.mutation = mutation

    def find_spec(self, name, path=None, target=None):
        if name != self.mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin, self.mutation)
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, mutation):
        super().__init__(name, path)
        self.mutation = mutation

    def get_code(self, name):
        """Never from, nor into, the cache of compiled files."""
        return compile(self.mutation.mutated(self.get_source(name)), self.path, "exec")


def of_bug(name: str, *tests: str) -> Mutation:
    return Mutation(name, tests)


def of_source(name: str, sentence: str, module: str, *changes: tuple[str, str], tests: tuple[str, ...]) -> Mutation:
    return Mutation(name, tests, sentence, f"transformer_lib.{module}", changes)


MUTATIONS = [
    of_bug("divide_by_d_model", "test_attention.py::test_scores_are_scaled_by_the_width_of_a_head"),
    of_bug("softmax_over_queries", "test_attention.py::test_cross_attention_fused_equals_readable", LLAMA),
    of_bug("mask_with_minus_1e4", FUTURE),
    of_bug("mask_off_by_one", FUTURE),
    of_bug("mask_after_softmax", LLAMA),
    of_bug("eps_outside_the_root", NORMS),
    of_bug("unbiased_variance", NORMS),
    of_bug("norm_on_the_stream", "test_reference.py::test_a_block_is_torchs_layer"),
    of_bug("dropped_residual", "test_reference.py::test_a_block_is_torchs_layer"),
    of_bug("swapped_gate", LLAMA),
    of_bug("missing_final_norm", "test_reference.py::test_gpt2", LLAMA),
    of_bug("top_left_mask", CHUNKS),
    of_bug("missing_rope_offset", CHUNKS),
    of_bug("cache_position_off_by_one", CHUNKS),
    of_bug("kv_heads_dealt_in_turn", "test_attention.py::test_query_heads_share_key_value_heads_in_order"),
    of_source(
        "pre and post swapped",
        "The config's word for the place of the norm is read the wrong way round.",
        "model",
        ('cfg.norm_position == "pre", cfg.residual', 'cfg.norm_position == "post", cfg.residual'),
        tests=("test_reference.py::test_a_block_is_torchs_layer",),
    ),
    of_source(
        "rope layouts mixed",
        "Neighbours are turned as pairs, in a model whose weights are in the half-split layout.",
        "positions",
        ("first, second = x.chunk(2, dim=-1)", "first, second = x[..., 0::2], x[..., 1::2]"),
        tests=("test_reference.py::test_rope_is_a_complex_product_in_the_interleaved_layout", LLAMA),
    ),
    of_source(
        "tied weights copied",
        "The tied unembedding starts as a copy of the embedding, and is then trained apart from it.",
        "model",
        ("weight = self.embedding.weight  #", "weight = nn.Parameter(self.embedding.weight.clone())  #"),
        tests=(
            "test_accounting.py::test_a_tied_table_is_stored_once_and_multiplies",
            "test_checkpoint.py::test_tied_weights_are_one_storage_in_the_file_and_after_loading",
        ),
    ),
    of_source(
        "padding attended",
        "The padding mask lets everything through.",
        "attention",
        ("mask = keep[:, None, None, :]", "mask = (keep | True)[:, None, None, :]"),
        tests=(PADDED,),
    ),
    of_source(
        "positions count padding",
        "A row's positions count its padding too.",
        "model",
        ("(keep.cumsum(dim=1) - 1 + before)", "(torch.ones_like(keep).cumsum(dim=1) - 1 + before)"),
        tests=(PADDED,),
    ),
    of_source(
        "padding outlives reset",
        "A cache that was emptied still thinks that it holds padding, and counts it.",
        "kv_cache",
        ("        self.has_padding = False\n", "        self.has_padding = getattr(self, 'has_padding', False)\n"),
        ("True if keep is None else keep", "self.keep[:, self.length : self.length + new] if keep is None else keep"),
        tests=("test_kv_cache.py::test_a_mask_may_be_left_out_once_the_padding_is_stored",),
    ),
    of_source(
        "overflow off by one",
        "The cache refuses the last token that fits.",
        "kv_cache",
        ("self.length + new > self.max_len", "self.length + new >= self.max_len"),
        tests=("test_kv_cache.py::test_one_token_past_the_capacity_is_refused_and_changes_nothing",),
    ),
    of_source(
        "loss mask after the mean",
        "Tokens that do not count are set to zero, and the mean is still taken over all.",
        "losses",
        (".sum() / keep.sum().clamp(min=1)", ".mean()"),
        tests=("test_losses.py::test_the_mask_is_applied_before_the_mean",),
    ),
    of_source(
        "labels not shifted",
        "The target at each position is the token that stands there, which the model can simply copy.",
        "losses",
        ("cross_entropy(model(ids[:, :-1]), ids[:, 1:],", "cross_entropy(model(ids[:, :-1]), ids[:, :-1],"),
        tests=("test_training.py::test_the_loss_mask_goes_before_the_mean",),
    ),
    of_source(
        "norms decay",
        "Weight decay pulls biases and norms towards zero too.",
        "training",
        ('{"params": vectors, "weight_decay": 0.0}', '{"params": vectors, "weight_decay": config.weight_decay}'),
        tests=("test_training.py::test_updates_are_those_of_adamw_with_decay_on_matrices_alone",),
    ),
    of_source(
        "clipped too early",
        "The gradient is clipped before it is computed.",
        "training",
        ("    loss.backward()\n", ""),
        ('    require_finite(length, "gradient"', '    loss.backward()\n    require_finite(length, "gradient"'),
        tests=("test_training.py::test_gradients_are_clipped",),
    ),
    of_source(
        "seed ignored",
        "Every seed draws the same batches.",
        "training",
        ("(config.seed * 1_000_003 + step) % 2**32", "step"),
        tests=("test_training.py::test_the_seed_of_the_config_draws_other_batches_for_the_same_weights",),
    ),
    of_source(
        "optimizer forgotten",
        "A resumed run starts with an empty optimizer.",
        "runs",
        ("        checkpoint.fill_optimizer(self.model, self.optimizer, tensors)\n", ""),
        tests=("test_training.py::test_interrupted_and_resumed_equals_uninterrupted",),
    ),
    of_source(
        "nan goes on",
        "A loss that is no number does not stop the training.",
        "training",
        ("if not math.isfinite(value):", "if math.isinf(value):"),
        tests=("test_training.py::test_nan_stops_with_a_sentence_and_the_last_good_checkpoint",),
    ),
    of_source(
        "save not atomic",
        "A checkpoint is written over the last one.",
        "checkpoint",
        ('part = folder / f"{FILE}.{os.getpid()}.part"', "part = folder / FILE"),
        tests=("test_checkpoint.py::test_a_failed_write_keeps_the_last_checkpoint_and_leaves_nothing_behind",),
    ),
    of_source(
        "top-p one too few",
        "Nucleus sampling drops the token that reaches p.",
        "generation",
        ("before = ordered.cumsum(dim=-1) - ordered", "before = ordered.cumsum(dim=-1)"),
        ("before >= max(top_p, 1e-30), 0)", "(before >= top_p) & (before > ordered), 0)"),
        tests=(CUTS,),
    ),
    of_source(
        "top-k one too many",
        "k + 1 tokens are kept.",
        "generation",
        ("ordered[..., top_k:] = 0", "ordered[..., top_k + 1 :] = 0"),
        tests=(CUTS,),
    ),
    of_source(
        "temperature multiplied",
        "The logits are multiplied by the temperature.",
        "generation",
        ("below_best / max(temperature, 1e-30)", "below_best * max(temperature, 1e-30)"),
        tests=(CUTS,),
    ),
    of_source(
        "dropout while generating",
        "Generation runs in the mode that the model happens to be in.",
        "generation",
        ("    model.eval()\n", ""),
        tests=("test_generation.py::test_the_models_mode_is_restored",),
    ),
]
FAST = ("mask_off_by_one", "kv_heads_dealt_in_turn", "loss mask after the mean", "save not atomic", "top-p one too few")
# What the test of the mutations is tested with: a change of a comment, which no test can notice.
NOTHING = of_source(
    "nothing", "Nothing is wrong.", "losses", ("# `where` and not a product:", "# `where`, not a product:"),
    tests=("test_losses.py::test_the_mask_is_applied_before_the_mean",),
)  # fmt: skip


def pytest_configure(config) -> None:
    """Called by pytest before it imports any test."""
    name = os.environ.get("MUTATION")
    if name:
        until = contextlib.ExitStack()
        config.add_cleanup(until.close)
        next(mutation for mutation in [*MUTATIONS, NOTHING] if mutation.name == name).turn_on(until)
