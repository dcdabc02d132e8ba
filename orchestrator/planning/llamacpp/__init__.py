"""The tree on llama.cpp: slots with their own caches or one shared pool, layers over CPU and GPUs."""
