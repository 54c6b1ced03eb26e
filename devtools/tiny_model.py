"""Makes a model with random weights, its tokenizer and an adapter: run by the engines' Python.

    python tiny_model.py DIRECTORY CORPUS...

The corpus is text files that the tokenizer is trained on. Weights come from a seed.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
HIDDEN, HEADS, LAYERS = 128, 4, 2
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | tojson }}{% endif %}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(directory: Path, corpus: list[str]) -> int:
    """Trains it; returns how many tokens it has."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    return len(fast)


def make_weights(directory: Path, tokens: int) -> None:
    """A Llama of 1.6 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def make_adapter(directory: Path, rank: int = 8) -> None:
    """An adapter of LoRA's, of random numbers, too."""
    directory.mkdir(exist_ok=True)
    torch.manual_seed(1)
    weights = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, HIDDEN, dtype=torch.bfloat16)
        weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, rank, dtype=torch.bfloat16)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["q_proj"],
        "bias": "none",
        "base_model_name_or_path": "tiny",
        "task_type": "CAUSAL_LM",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    """Makes all of it."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    make_weights(directory, make_tokenizer(directory, sys.argv[2:]))
    make_adapter(directory / "adapter")


if __name__ == "__main__":
    main()
