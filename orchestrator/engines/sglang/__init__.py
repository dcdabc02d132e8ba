"""SGLang (https://github.com/sgl-project/sglang): the only place that knows its flags, paths and texts."""
