"""What a job says about itself while it runs or hangs: flight records, NCCL's inspector and RAS.
Readers only.
"""
