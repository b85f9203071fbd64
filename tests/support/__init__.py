"""What tests share: judges, cases, stand-ins, and the programs that tests start in processes of
their own.
"""
