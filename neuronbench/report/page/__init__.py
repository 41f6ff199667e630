"""A report: one page of HTML that needs nothing else, or Markdown, of a set of receipts."""
