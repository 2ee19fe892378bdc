"""What came after: small real modules that vary the core's block, one idea each.

    mla             a cached latent in place of keys and values       (DeepSeek-V2, 2024)
    moe             many MLPs and a router in place of one            (Shazeer et al., 2017; Fedus et al., 2021)
    ssm, scan       a recurrence in place of attention                (Gu and Dao, 2023)
    masked_encoder  fill in the blanks, without the causal mask       (Devlin et al., 2018)
    diffusion       generate by filling in blanks, in any order       (Sahoo et al., 2024; Nie et al., 2025)
    grape           RoPE and ALiBi as one family of groups            (Su et al., 2021; Press et al., 2022)
    counting        parameters and decoding memory, measured alike

Each model is the core's `Transformer` with one part exchanged, takes a config of its own, and is used in the same way:
`model(ids) -> logits`, `model.new_cache(batch_size, max_len)`, `record(model)`.
"""
