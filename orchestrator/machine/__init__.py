"""What a machine is, as a process here may use it; or a file that says so."""

from orchestrator.machine.files import load
from orchestrator.machine.machine import Gpu, Holder, Link, Machine
from orchestrator.machine.measuring import measure

__all__ = ["Gpu", "Holder", "Link", "Machine", "load", "measure"]
