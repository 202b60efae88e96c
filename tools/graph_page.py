"""A graph as one HTML page that needs nothing else: groups that open, a search, pictures."""

from __future__ import annotations

from collections.abc import Iterator

from .graph_notes import Note, NotedGraph, figure, size, totals
from .graph_picture import picture, safe

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--line:#8886;--hot:224,92,30;--link:#2467b8}
@media (prefers-color-scheme:dark){:root{--link:#7db2f0}}
body{font:13px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1500px;padding:12px 20px}
h1{font-size:19px;margin:4px 0}p{margin:4px 0 10px}
header{position:sticky;top:0;background:Canvas;padding:8px 0;z-index:1;
border-bottom:1px solid var(--line);display:flex;gap:10px;align-items:center}
input{font:inherit;padding:5px 8px;width:24em;max-width:60vw}button{font:inherit;padding:4px 10px}
details.g{border:1px solid var(--line);border-radius:6px;margin:8px 0;overflow:hidden}
details.g>summary{cursor:pointer;padding:6px 10px;display:flex;gap:14px;align-items:baseline}
details.g>summary::before{content:"▸"}details.g[open]>summary::before{content:"▾"}
summary b{min-width:8em}summary span{opacity:.8;min-width:6.5em;text-align:right}
summary i{flex:1;height:8px;align-self:center;background:
linear-gradient(rgb(var(--hot)),rgb(var(--hot))) no-repeat 0/calc(var(--part)*100%) 100%,#8882}
.scroll{overflow-x:auto}.pic{margin:4px 10px}.pic summary{cursor:pointer;color:var(--link)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:2px 8px;border-top:1px solid var(--line);vertical-align:top}
th{font-weight:600;opacity:.75}td.r,th.r{text-align:right;white-space:nowrap}
td.r{font-variant-numeric:tabular-nums}td code{font-size:12px}
td.h{background:rgba(var(--hot),calc(var(--heat)*.6))}
td:nth-child(6){white-space:nowrap}tr.leaf{opacity:.7}
tr:target{outline:2px solid rgb(var(--hot));outline-offset:-2px;opacity:1}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
svg path{fill:none;stroke:#8889}svg rect{fill:rgba(var(--hot),calc(.06 + var(--heat)*.6));
stroke:#888;rx:4px}svg text{font-size:11px;text-anchor:middle;fill:CanvasText}
svg text.s{font-size:9px;opacity:.7}svg a:hover rect{stroke-width:2px}
[hidden]{display:none!important}
"""
_SCRIPT = """
const groups=[...document.querySelectorAll('details.g')],box=document.querySelector('input'),
count=document.querySelector('output'),
rows=groups.map(g=>[...g.querySelectorAll('tr[id]')].map(r=>
[r,(g.querySelector('b').textContent+' '+r.textContent).toLowerCase()]));
let timer;
function search(){
const words=box.value.toLowerCase().split(/\\s+/).filter(w=>w);
let found=0;
groups.forEach((g,i)=>{
let here=0;
for(const [row,text] of rows[i]){
const match=words.every(w=>text.includes(w));
row.hidden=!match;here+=match;}
g.hidden=!here;found+=here;
if(words.length)g.open=here>0;});
count.textContent=words.length?found+' nodes':'';}
function show(){
const row=location.hash.startsWith('#n')&&document.getElementById(location.hash.slice(1));
if(!row)return;
if(row.hidden){box.value='';search();}
row.closest('details').open=true;row.scrollIntoView({block:'center'});}
box.addEventListener('input',()=>{clearTimeout(timer);timer=setTimeout(search,80);});
document.querySelectorAll('button').forEach(b=>b.addEventListener('click',()=>
groups.forEach(g=>g.open=b.value==='1')));
addEventListener('hashchange',show);
box.value=new URLSearchParams(location.search).get('q')||'';
if(box.value)search();
show();
"""


def page(noted: NotedGraph) -> str:
    """The page. Nodes are rows with the id n<number>; `?q=words` starts with a search."""
    total, title = noted.total, safe(noted.title)
    share = shares(noted)
    facts = [f"{len(noted.notes)} nodes, {total.running} of them run"]
    facts += [f"{figure(total.flops)}FLOP", f"{size(total.moved)} moved"]
    if noted.measured:
        facts.append(f"{1e3 * total.seconds:.3g} ms in nodes")
    outputs = ", ".join(f"{safe(k)} {_link(v.node.id)}" for k, v in noted.graph.outputs.items())
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{title}: {safe(noted.graph.name)}</h1>"
        f"<p>{' · '.join(facts)} · outputs: {outputs}</p>"
        '<header><input type="search" placeholder="Search op, name, shape, kernel" autofocus>'
        '<button value="1">Open all</button><button value="0">Close all</button><output></output>'
        "</header>"
    )
    groups = [_group(noted, name, notes, share) for name, notes in noted.groups.items()]
    return "\n".join([head, *groups, f"<script>{_SCRIPT}</script></body></html>"]) + "\n"


def shares(noted: NotedGraph) -> dict[int, float]:
    """Each node's part of the whole time, by id; of the bytes moved where nothing was measured."""
    parts = {n.node.id: (n.seconds or 0.0) if noted.measured else n.moved for n in noted.notes}
    whole = sum(parts.values()) or 1.0
    return {key: part / whole for key, part in parts.items()}


def _group(noted: NotedGraph, name: str, notes: list[Note], share: dict[int, float]) -> str:
    sums = totals(notes)
    part = sum(share[note.node.id] for note in notes)
    facts = [f"{len(notes)} nodes", f"{figure(sums.flops)}FLOP", f"{size(sums.moved)} moved"]
    if noted.measured:
        facts.append(f"{1e6 * sums.seconds:.1f} µs")
    facts.append(f"{100 * part:.1f} % of the {'time' if noted.measured else 'bytes'}")
    drawn = picture(notes, share)
    drawing = f'<details class="pic"><summary>picture</summary>{drawn}</details>' if drawn else ""
    rows = "\n".join(_row(note, share, noted.measured) for note in notes)
    return (
        f'<details class="g"><summary><b>{safe(name)}</b>'
        + "".join(f"<span>{fact}</span>" for fact in facts)
        + f'<i style="--part:{part:.4f}"></i></summary><div class="scroll">{drawing}'
        f"<table>{_heading(noted.measured)}{rows}</table></div></details>"
    )


def _heading(measured: bool) -> str:
    cells = ["node", "op", "name", "inputs", "result", "runs as"]
    numbers = ["FLOP", "reads", "writes"] + (["µs", "%"] if measured else ["% of bytes"])
    plain = "".join(f"<th>{cell}</th>" for cell in cells)
    return f"<tr>{plain}{''.join(f'<th class=r>{cell}</th>' for cell in numbers)}</tr>"


def _row(note: Note, share: dict[int, float], measured: bool) -> str:
    node = note.node
    attributes = ", ".join(f"{k}={_plain(v)}" for k, v in node.op.attributes().items())
    inputs = " ".join(_link(v.node.id, v.index) if v is not None else "–" for v in node.inputs)
    result = " ".join(f"<code>{safe(str(spec))}</code>" for spec in node.specs)
    hint = f' title="{safe(node.where)}"' if node.where else ""
    detail = f"<br><small>{safe(attributes)}</small>" if attributes else ""
    plain = [f"%{node.id}", safe(node.op.name) + detail, safe(node.name), inputs, result]
    cells = "".join(f"<td>{cell}</td>" for cell in [*plain, safe(note.where)])
    kind = ' class="leaf"' if note.cost is None else ""
    numbers = "".join(_numbers(note, share[node.id], measured))
    return f'<tr id="n{node.id}"{kind}{hint}>{cells}{numbers}</tr>'


def _numbers(note: Note, part: float, measured: bool) -> Iterator[str]:
    """The cells of work and time; of leaves and views only the size of the result."""
    if note.cost is None:
        yield f"<td></td><td></td><td class=r>({size(note.nbytes)})</td>"
        yield "<td></td>" * (2 if measured else 1)
        return
    for text in (figure(note.cost.flops), size(note.cost.read), size(note.cost.write)):
        yield f"<td class=r>{text.strip()}</td>"
    if measured:
        yield f"<td class=r>{1e6 * (note.seconds or 0.0):.1f}</td>"
    yield f'<td class="r h" style="--heat:{min(1.0, 10 * part):.2f}">{100 * part:.1f}</td>'


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _link(node: int, index: int = 0) -> str:
    return f'<a href="#n{node}">%{node}{f".{index}" if index else ""}</a>'
