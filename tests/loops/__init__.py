"""Loop programs written against the contract: what must be rewritten, what must be left alone, and a fuzzer."""
