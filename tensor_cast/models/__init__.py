"""From a config to a program on meta tensors: Hugging Face models, or any class, and the inputs of a workload."""
