"""Checks the volume for the workspaces of shell and file tools."""

import manifests as rules

VOLUMES = {
    "locked-down": {"persistentVolumeClaim": {"claimName": "fleet-workspaces"}},
    "own-config": {"emptyDir": {"sizeLimit": "2Gi"}},
}
SETTING = "TICKFLEET_WORKER_WORKSPACES"


def check(rendered):
    """Returns the number of checked pods, and complaints. If the values have a volume for a worker, the volume must be
    mounted above the worker's workspace folder. Other pods must have neither the volume nor the mount."""
    count, complaints = 0, []
    for shape, found in rendered.items():
        for _, _, spec in rules.pod_templates(found):
            container = spec["containers"][0]
            wanted = VOLUMES.get(shape) if container["name"] == "worker" else None
            volume = next((dict(v) for v in spec.get("volumes", []) if v["name"] == "workspaces"), None)
            mount = next((m for m in container.get("volumeMounts", []) if m["name"] == "workspaces"), None)
            setting = next((e["value"] for e in container.get("env", []) if e["name"] == SETTING), None)
            if volume is not None:
                del volume["name"]
            count += 1
            if volume != wanted:
                complaints.append(f"{shape}: the volume is {volume}, not {wanted}")
            elif wanted and (mount is None or mount.get("readOnly") or not (setting or "").startswith(mount["mountPath"] + "/")):
                complaints.append(f"{shape}: {setting} is not below the mount {mount}")
            elif not wanted and (mount or setting):
                complaints.append(f"{shape}: a mount {mount} or a setting {setting} without a volume")
    return count, complaints
