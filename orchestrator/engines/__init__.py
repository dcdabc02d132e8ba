"""The engines that can be launched: one folder each, all behind `base.Engine`."""
