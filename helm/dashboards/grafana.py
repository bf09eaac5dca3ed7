"""Elements of dashboards in Grafana's JSON model (schema version 39, Grafana 10 and later)."""

SCHEMA_VERSION = 39
COLUMNS = 24

# The links between the dashboards have this order.
DASHBOARDS = {
    "tickfleet-fleet": "Tickfleet / Fleet",
    "tickfleet-governance": "Tickfleet / Governance",
    "tickfleet-reliability": "Tickfleet / Reliability",
    "tickfleet-redis": "Tickfleet / Redis",
}

# Replaces `@` in queries, and selects the chosen fleet and processes.
SELECTION = 'namespace=~"$namespace", job=~"$job"'

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def steps(*pairs):
    """Returns thresholds of pairs such as (None, GREEN), (5, YELLOW), (30, RED)."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in pairs]}


PLAIN = steps((None, GREEN))


def target(ref, query, legend):
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.replace("@", SELECTION),
        "legendFormat": legend,
        "range": True,
        "refId": ref,
    }


def panel(kind, title, description, queries, unit, *, width=8, height=8, thresholds=PLAIN, decimals=None, maximum=None):
    """Returns a panel. `queries` is a list of (query, legend)."""
    defaults = {"unit": unit, "thresholds": thresholds, "color": {"mode": "thresholds"}, "min": 0}
    if decimals is not None:
        defaults["decimals"] = decimals
    if maximum is not None:
        defaults["max"] = maximum
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": [target(chr(ord("A") + at), *query) for at, query in enumerate(queries)],
    }


def stat(title, description, query, unit="short", **more):
    made = panel("stat", title, description, [(query, "")], unit, **{"width": 4, "height": 4, **more})
    made["options"] = {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    }
    return made


def graph(title, description, queries, unit="short", *, stacked=False, line_at=False, **more):
    """Returns a panel with lines over time. `line_at` draws the thresholds as lines."""
    made = panel("timeseries", title, description, queries, unit, **more)
    made["fieldConfig"]["defaults"]["color"] = {"mode": "palette-classic"}
    made["fieldConfig"]["defaults"]["custom"] = {
        "drawStyle": "line",
        "fillOpacity": 20 if stacked else 5,
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if line_at else "off"},
    }
    made["options"] = {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def heatmap(title, description, query, unit="s", **more):
    made = panel("heatmap", title, description, [(query, "{{le}}")], unit, **more)
    made["targets"][0]["format"] = "heatmap"
    made["options"] = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "cellGap": 1,
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
    }
    return made


def bars(title, description, query, legend, unit="short", **more):
    """Returns a panel with the current values as bars, the largest first."""
    made = panel("bargauge", title, description, [(query, legend)], unit, **more)
    made["targets"][0].update({"instant": True, "range": False})
    made["options"] = {
        "displayMode": "gradient",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
    }
    return made


def table(title, description, query, columns, **more):
    """Returns a table with one row per series, showing label values. `columns` are the labels, in order."""
    made = panel("table", title, description, [(query, "")], "short", **more)
    made["targets"][0].update({"instant": True, "range": False, "format": "table"})
    made["options"] = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
    shown = [*columns, "Value"]
    made["transformations"] = [
        {"id": "filterFieldsByName", "options": {"include": {"names": shown}}},
        {"id": "organize", "options": {"indexByName": {name: at for at, name in enumerate(shown)}}},
    ]
    return made


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": []}


def lay_out(panels):
    """Sets the id and the position of every panel: from left to right, in rows."""
    x = y = line = 0
    for number, made in enumerate(panels, start=1):
        made["id"] = number
        if made["type"] == "row":
            x, y, line = 0, y + line, 1
            made["gridPos"] = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            x, y, line = 0, y + 1, 0
            continue
        place = made["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, line = 0, y + line, 0
        made["gridPos"] = {"x": x, "y": y, **place}
        x, line = x + place["w"], max(line, place["h"])
    return panels


def variable(name, label, label_of, query_filter=""):
    query = f"label_values(tickfleet_build_info{query_filter}, {label_of})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "A", "qryType": 1},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # This value also matches series without the label, as in fleets outside of Kubernetes.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def links(own):
    """Returns links to the other dashboards. They keep the chosen fleet and time."""
    make = lambda uid, title: {
        "type": "link",
        "title": title.removeprefix("Tickfleet / "),
        "tooltip": title,
        "icon": "dashboard",
        "url": f"/d/{uid}",
        "keepTime": True,
        "includeVars": True,
        "targetBlank": False,
        "asDropdown": False,
        "tags": [],
    }
    return [make(uid, title) for uid, title in DASHBOARDS.items() if uid != own]


def dashboard(uid, description, panels):
    return {
        "uid": uid,
        "title": DASHBOARDS[uid],
        "description": description,
        "tags": ["tickfleet"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": links(uid),
        "annotations": {"list": [firing(), restarts()]},
        "templating": {
            "list": [
                {
                    "type": "datasource",
                    "name": "datasource",
                    "label": "Data source",
                    "query": "prometheus",
                    "current": {},
                    "hide": 0,
                },
                variable("namespace", "Fleet (namespace)", "namespace"),
                variable("job", "Job", "job", '{namespace=~"$namespace"}'),
            ]
        },
        "panels": lay_out(panels),
    }


def annotation(name, color, query, title):
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": query.replace("@", SELECTION),
        "titleFormat": title,
        "step": "30s",
    }


def firing():
    query = 'ALERTS{alertname=~"Tickfleet.*", alertstate="firing", severity="page", namespace=~"$namespace"}'
    return annotation("Pages", RED, query, "{{alertname}}")


def restarts():
    query = "sum by (namespace) (changes(tickfleet_epoch_changes_total{@}[1m])) > 0"
    return annotation("Redis restarted", YELLOW, query, "Redis restarted")
