"""Replay of recorded requests: what a cache of some size under some policy would have hit. No torch, no clock.

What makes such figures wrong, and what is done about it here:
- A page whose ancestors are gone is no hit: only the leading pages of a request that are all there count, and leaves
  go first, so that nothing is cached in vain. Policies that drop any block look better than they are where this is
  left out.
- The fast paths are *sequential*: each request ends before the next one comes. Really, pages of running requests can't
  go. Figures at capacities below about three times what is in use at once say little of a real server.
- The last page of a prompt may be partial (``Trace.has_partial_tail``), so tokens are not pages times a constant.
- What was generated is among the pages only where a later request sends it back.
- Traces have steps in time and many requests at one moment: order decides.
- One system prompt can be most of what a small cache hits: see ``Trace.shared_head``.
- Ids of content alone are not prefixes: readers chain them.
"""
