"""What people are asked before an order moves."""

from __future__ import annotations

from django import forms


class ReturnForm(forms.Form):
    """Why an order came back. It is kept with the record of the move."""

    reason = forms.ChoiceField(
        choices=[("damaged", "It was damaged"), ("wrong", "It was the wrong one"), ("unwanted", "No longer wanted")]
    )
    remark = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}))
