"""TRL's SFTTrainer: a small Llama model, with its own tokenizer and texts."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ("<pad>", "<eos>", "<unk>")


def make_tokenizer():
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pad, end, unknown = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token=unknown
    )


def main():
    texts = [
        " ".join(WORDS[(line * 7 + place * place) % 60] for place in range(8 + line % 5))
        for line in range(32)
    ]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + len(SPECIAL),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    arguments = SFTConfig(
        output_dir=sys.argv[1],
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        max_length=16,
        dataset_num_proc=2,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    history = [line for line in trainer.state.log_history if "loss" in line]
    losses, norms = ([line[name] for line in history] for name in ("loss", "grad_norm"))
    total = sum(float(each.detach().double().sum()) for each in trainer.model.parameters())
    print(f"\n{dist.get_rank()}", *losses, *norms, total, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
