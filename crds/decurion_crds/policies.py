"""Admission policies of the API server: what a schema cannot say, since it depends on who asks.

An Approval is worth what its `by` is worth: only the API server knows who the caller is, and this policy has it
compare. It needs no webhook and fails closed.
"""

from __future__ import annotations

from typing import Any

from decurion_crds.v1alpha1.base import GROUP, VERSION

APPROVAL_POLICY = f"approvals.{GROUP}"
_BY = (
    "'spec.by is \"' + object.spec.by + '\", and you are \"' + request.userInfo.username + "
    "'\": a decision is given in one\\'s own name'"
)
_GROUP = "'spec.group is \"' + object.spec.group + '\", and you are in no such group: name one of your own, or none'"


def policy_manifests() -> list[dict[str, Any]]:
    """The policy that an Approval is given in one's own name, and its binding to the whole cluster."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": APPROVAL_POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [VERSION],
                        "operations": ["CREATE"],
                        "resources": ["approvals"],
                    }
                ]
            },
            "validations": [
                {
                    "expression": "object.spec.by == request.userInfo.username",
                    "message": "spec.by is not the name of the caller: a decision is given in one's own name",
                    "messageExpression": _BY,
                    "reason": "Forbidden",
                },
                {
                    "expression": "!has(object.spec.group) || object.spec.group in request.userInfo.groups",
                    "message": "spec.group is no group of the caller: name one of your own, or none",
                    "messageExpression": _GROUP,
                    "reason": "Forbidden",
                },
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": APPROVAL_POLICY},
        "spec": {"policyName": APPROVAL_POLICY, "validationActions": ["Deny"]},
    }
    return [policy, binding]
