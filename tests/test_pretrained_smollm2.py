"""SmolLM2-135M-Instruct, where its package is installed: the known text, transformers' logits, its chat template."""

import json

import numpy as np
import pytest
import torch
from reference import EXPECTED, needs_smollm2

from transformer_lib import PRESETS, generate
from transformer_lib.pretrained import TextStream, chat_prompt, load_pretrained, stop_ids
from transformer_lib.pretrained.gguf_file import open_gguf
from transformer_lib.pretrained.smollm2 import smollm2_file

pytestmark = [pytest.mark.reference, needs_smollm2]


@pytest.fixture(scope="module")
def smollm2():
    return load_pretrained("smollm2-135m")


def test_shape(smollm2):
    model, tokenizer = smollm2
    assert model.cfg == PRESETS["smollm2-135m"]
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert tokenizer.vocab_size == 49_152


@pytest.mark.skipif(not EXPECTED.exists(), reason="the expected text is not at hand")
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_text(smollm2, use_cache):
    model, tokenizer = smollm2
    (expected,) = json.loads((EXPECTED / "smollm2_q4_1_greedy.json").read_text())
    prompt = tokenizer.encode(expected["prompt"])
    new = len(expected["ids"]) - len(prompt)
    ids = generate(model, torch.tensor([prompt]), max_new_tokens=new, use_cache=use_cache)[0].tolist()
    assert ids == expected["ids"]
    assert tokenizer.decode(ids) == expected["text"]


def test_logits_are_those_of_transformers_with_the_same_numbers(smollm2):
    """The weights go to transformers from the package's own reader, by a rearrangement written here."""
    transformers = pytest.importorskip("transformers")
    import gguf

    model, tokenizer = smollm2
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            )
        )  # fmt: skip
    layers = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    state = {}
    for tensor in gguf.GGUFReader(smollm2_file()).tensors:
        numbers = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        name = whole.get(tensor.name)
        if name is None:
            _, i, part, _ = tensor.name.split(".")
            name = f"model.layers.{i}.{layers[part]}.weight"
            if part in ("attn_q", "attn_k"):  # heads of 64 rows, neighbours (2j, 2j + 1) -> j and j + 32
                numbers = np.concatenate(
                    [numbers.reshape(-1, 64, 576)[:, 0::2], numbers.reshape(-1, 64, 576)[:, 1::2]], 1
                )
                numbers = numbers.reshape(-1, 576)
        state[name] = torch.from_numpy(numbers)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    theirs.load_state_dict(state, assign=True)
    rotary = type(theirs.model.rotary_emb)(theirs.config)  # its table of angles is no weight and was left on "meta"
    theirs.model.rotary_emb = rotary
    ids = torch.tensor([tokenizer.encode("The capital of France is Paris.\n\nIn 2018, it's the 22nd of May; ½ é 🫠")])
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        # logits reach 40; 30 layers of float32 sums in another order
        torch.testing.assert_close(model(ids), expected, atol=2e-3, rtol=1e-4)


def test_tokenizer(smollm2):
    _, tokenizer = smollm2
    assert tokenizer.pieces("It's 2018.<|im_end|>\n") == ["It", "'s", "Ġ", "2", "0", "1", "8", ".", "<|im_end|>", "Ċ"]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert set(stop_ids(tokenizer)) == {0, 2}
    for text in ("", " ", "\t\n  x", "日本語 🫠 ½ \u0000\u2581", "<|im_start|>user\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_prompt_is_the_template_of_the_file(smollm2):
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Template(open_gguf(smollm2_file())[0]["tokenizer.chat_template"])
    question = {"role": "user", "content": "What is 2 + 2?"}
    for messages in (
        [question],
        [{"role": "system", "content": "Be brief."}, question],
        [question, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}],
    ):
        assert chat_prompt(messages) == template.render(messages=messages, add_generation_prompt=True)
    assert chat_prompt("What is 2 + 2?") == chat_prompt([question])


def test_an_answer_ends_by_itself_and_streams_as_it_is(smollm2):
    model, tokenizer = smollm2
    prompt = tokenizer.encode(chat_prompt("What is the capital of France? Answer in one word."))
    stream, shown = TextStream(tokenizer, prompt), []
    ids = generate(
        model, torch.tensor([prompt]), max_new_tokens=60, stop_ids=stop_ids(tokenizer),
        on_token=lambda new: shown.append(stream.push(int(new[0]))),
    )[0].tolist()  # fmt: skip
    assert ids[-1] == tokenizer.eos_id
    assert "Paris" in "".join(shown)
    assert "".join(shown) + stream.flush() == tokenizer.decode(ids[len(prompt) :])


def test_bfloat16(smollm2):
    model, tokenizer = smollm2
    half, _ = load_pretrained("smollm2-135m", dtype=torch.bfloat16)
    assert sum(parameter.nbytes for parameter in half.parameters()) == 2 * 134_515_008
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        assert int(half(ids)[0, -1].argmax()) == int(model(ids)[0, -1].argmax())
    assert torch.equal(half.blocks[29].mlp.w_3.weight, model.blocks[29].mlp.w_3.weight.bfloat16())
