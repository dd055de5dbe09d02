"""The page's style: light and dark, wide and narrow, screen and paper."""

from __future__ import annotations

from collections.abc import Sequence

from vcotta.report.looks import Look

__all__ = ["style_for"]

STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d9dde2;--faint:#eef0f2;
--accent:#0b5cad;--heat:213 94 0;--shadow:0 1px 2px rgb(0 0 0/.05),0 4px 16px rgb(0 0 0/.04)}
@media screen and (prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#171b21;--ink:#e9edf1;--soft:#a5b0bb;
--line:#313842;--faint:#20262e;--accent:#7db8f5;--heat:240 110 20;--shadow:none}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%;scroll-padding-top:3.5rem}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
header,main,footer{max-width:1080px;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.75rem}
h1{font-size:clamp(1.6rem,4.5vw,2.3rem);line-height:1.15;letter-spacing:-.02em;margin:0 0 .5rem}
h2{font-size:1.3rem;letter-spacing:-.01em;margin:0 0 .35rem;line-height:1.25}
h3{font-size:.95rem;margin:0 0 .25rem}
p{margin:.4rem 0;max-width:72ch}
p.soft{max-width:90ch}
.soft,figcaption,footer{color:var(--soft);font-size:.92rem}
a{color:var(--accent)}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px;border-radius:4px}
.skip{position:absolute;left:1rem;top:-4rem;background:var(--card);padding:.6rem 1rem;z-index:9;
border-radius:0 0 8px 8px}
.skip:focus{top:0}
nav{position:sticky;top:0;z-index:5;background:var(--bg);border-bottom:1px solid var(--line);margin-top:1.25rem}
nav ul{max-width:1080px;margin:0 auto;padding:.55rem 1.25rem;list-style:none;display:flex;gap:.15rem 1.1rem;
overflow-x:auto;white-space:nowrap;font-size:.92rem}
nav a{text-decoration:none;color:var(--soft);display:inline-block;padding:.15rem 0}nav a:hover{color:var(--accent)}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:1.35rem 1.5rem;margin:1.25rem 0;
box-shadow:var(--shadow)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,9rem),1fr));gap:.75rem;margin:1.1rem 0}
.tile{background:var(--faint);border-radius:10px;padding:.75rem 1rem;min-width:0}
.tile b{display:block;font-size:1.55rem;line-height:1.2;letter-spacing:-.02em}
.tile span{color:var(--soft);font-size:.86rem}
.rank{list-style:none;margin:1.1rem 0;padding:0;display:grid;gap:.4rem}
.rank li{display:grid;grid-template-columns:minmax(4.5rem,11rem) 1fr 8.5rem;gap:.8rem;align-items:center}
.rank .bar{height:.95rem;border-radius:4px;background:currentColor;width:var(--w);min-width:2px}
.rank .value{font-variant-numeric:tabular-nums;text-align:right}
.rank .range{display:inline;padding-right:.6em}
.scroll{overflow-x:auto;margin:.8rem 0;max-width:100%;-webkit-overflow-scrolling:touch}
table{border-collapse:separate;border-spacing:0;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;height:0;padding:0}
th,td{padding:.42rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card);z-index:1}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
th button{all:unset;cursor:pointer;padding:.2rem .1rem;border-radius:4px;font-weight:600}
th button:hover{color:var(--accent)}
th button:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
th button::after{content:"\\2195";opacity:.45;padding-left:.15em;display:inline-block;width:.9em}
th[aria-sort=ascending] button::after{content:"\\2191";opacity:1}
th[aria-sort=descending] button::after{content:"\\2193";opacity:1}
th[aria-sort]{color:var(--ink)}
tbody tr:hover>*{background:var(--faint)}
.best{font-weight:700}.best::before{content:"\\2605";font-size:.7em;color:var(--accent);padding-right:.35em;
vertical-align:.15em}
.range{display:block;color:var(--soft);font-size:.78rem;font-weight:400;line-height:1.2}
.heat{font-size:.84rem}
.heat td{text-align:center;padding:.5rem .3rem;min-width:2.7rem;border:1px solid var(--card);border-radius:6px;
background:rgb(var(--heat)/var(--a));print-color-adjust:exact;-webkit-print-color-adjust:exact}
.heat tbody tr:hover td{background:rgb(var(--heat)/var(--a))}
.heat thead th{border:0;height:8.5rem;padding:.2rem .3rem;font-weight:500}
.heat thead th:not(:first-child) span{writing-mode:vertical-rl;transform:rotate(180deg);display:inline-block}
.heat thead th:not(:first-child){text-align:center}
.heat tbody th{border:0;font-weight:600}
.heat .best::before{content:none}.heat .best{text-decoration:underline;text-underline-offset:3px}
.heat td:last-child{border-left:10px solid var(--card);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:.35rem .5rem;margin:.7rem 0;padding:0;list-style:none}
.legend button{font:inherit;font-size:.88rem;color:var(--ink);background:none;border:1px solid var(--line);
border-radius:99px;padding:.2rem .75rem .2rem .55rem;cursor:pointer;display:flex;gap:.5rem;align-items:center;
min-height:2rem}
.legend button:hover{border-color:currentColor}
.legend button[aria-pressed=false]{opacity:.65;text-decoration:line-through;border-style:dashed}
svg.chart{display:block;width:100%;height:auto;max-width:100%}
.wide svg.chart{min-width:760px}
svg text{fill:var(--soft);font-size:12px;font-family:inherit}
svg .name{fill:var(--ink)}svg .tag{fill:currentColor;font-weight:600}
svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}
svg .l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
svg .band{fill:currentColor;opacity:.16}svg .gap{stroke:currentColor;stroke-width:5;opacity:.25}
svg .lead{stroke:currentColor;stroke-width:1;opacity:.5}
svg .k{fill:currentColor;stroke:var(--card);stroke-width:1}
svg .diagonal{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
.s{transition:opacity .12s}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.25rem}
.grid4{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,13.5rem),1fr));gap:1rem}
.grid2>*,.grid4>*,.strips>*{min-width:0}
figure{margin:0}
.strips{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,13.5rem),1fr));gap:1rem}
.strips img{width:100%;height:auto;border-radius:6px;display:block;background:var(--faint)}
.strips.small img{image-rendering:pixelated}
details{border-top:1px solid var(--line);padding:.6rem 0 .2rem}.grid2+details,.grid4+details{margin-top:1rem}
details:last-child{border-bottom:0}
summary{cursor:pointer;font-weight:600;font-size:.94rem}
summary span{font-weight:400;color:var(--soft)}
pre{overflow:auto;max-height:26rem;background:var(--faint);padding:1rem;border-radius:8px;font-size:.82rem;line-height:1.45}
.notes{padding-left:1.1rem;margin:.6rem 0}.notes li{margin:.2rem 0;max-width:72ch}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
footer{padding-top:.5rem;padding-bottom:3rem}
@media (max-width:520px){header,main,footer{padding-left:.8rem;padding-right:.8rem}section{padding:1.05rem .9rem}
.rank li{grid-template-columns:6rem 1fr 4.6rem;gap:.5rem;font-size:.92rem}.rank .range{display:block;padding:0}
.range{font-size:.72rem}
.grid4,.strips{grid-template-columns:1fr 1fr;gap:.7rem}.grid4 svg text{font-size:13.5px}}
@media print{body{font-size:10.5pt;background:#fff}nav,.skip,th button::after{display:none!important}
header{padding-top:0}section{border:0;box-shadow:none;padding:.4rem 0;break-inside:auto}
figure,svg.chart,table,.tile{break-inside:avoid}.range{font-size:6.5pt}
.grid2{grid-template-columns:1fr 1fr}.grid4,.strips{grid-template-columns:repeat(4,1fr)}
h2,h3,h2+.soft,.legend{break-after:avoid}.scroll{overflow:visible}
.wide svg.chart{min-width:0}table{font-size:8pt}th,td{padding:.2rem .3rem}.heat td{min-width:0;padding:.25rem .1rem}
th:first-child,td:first-child{position:static}.legend button{border:0;padding:0;min-height:0}
.rank .bar,.tile{print-color-adjust:exact;-webkit-print-color-adjust:exact}pre{max-height:none;white-space:pre-wrap}}
"""


def style_for(looks: Sequence[Look]) -> str:
    """Return the style sheet of a page with these methods: ``.m0`` is the first one's colour, and so on.

    Example:
        >>> from vcotta.report.looks import looks
        >>> ".m0{color:#c75300}" in style_for(looks(["vcotta"]))
        True
    """
    light = "".join(f".m{place}{{color:{look.light}}}" for place, look in enumerate(looks))
    dark = "".join(f".m{place}{{color:{look.dark}}}" for place, look in enumerate(looks))
    hide = "".join(
        f".hide-{place} .s.m{place}{{display:none}}.only-{place} .s:not(.m{place}){{opacity:.12}}"
        for place in range(len(looks))
    )
    return f"{STYLE}{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n{hide}\n"
