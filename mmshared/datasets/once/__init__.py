"""Any dataset loaded once per node: one process runs its own loading, the others map what came of it.

``loading.py`` says who loads and what the others take over. It needs to know what the result depends on
(``content.py``), what loading has changed (``changes.py``, ``random_state.py``), and how that lies in a file
(``file.py``, ``items.py``).
"""

from .items import PickledList, copies_only
from .loading import Sharing, load_once

__all__ = ['PickledList', 'Sharing', 'copies_only', 'load_once']
