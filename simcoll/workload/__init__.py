"""Training steps: models, GPUs, meshes and workloads, lowered to programs of the emulator."""
