"""Forms that dossiers ask for before they move."""

from __future__ import annotations

from django import forms

from lab.models import Dossier


class SealForm(forms.ModelForm):
    """A field of the row, and a remark for the record."""

    remark = forms.CharField(required=False)

    class Meta:
        model = Dossier
        fields = ["seal"]

    def clean_seal(self) -> str:
        seal: str = self.cleaned_data["seal"]
        if seal == "wax":
            raise forms.ValidationError("Wax is not good enough.")
        return seal


class LossForm(forms.Form):
    """Facts for the record alone."""

    where = forms.CharField()
    when = forms.DateField(required=False)
