"""How the page looks, by light and by dark. The colours differ in lightness too, so they can be told apart by those who
don't see all hues (after Okabe and Ito, 2008, moved towards the contrast each background needs).
"""

STYLE = """
:root { --back: #ffffff; --ink: #1a1d21; --soft: #5b636d; --rule: #e2e5e9; --panel: #f7f8fa;
  --s0: #0072b2; --s1: #d55e00; --s2: #00845f; --s3: #a3478b; --s4: #8a6a00; --s5: #4a90c2;
  --t0: #0072b2; --t1: #e69f00; --t2: #a3478b; --t3: #00845f; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --ink: #eceff2; --soft: #a3acb6; --rule: #2d3339; --panel: #1b1f23;
    --s0: #56b4e9; --s1: #ff8a4c; --s2: #35c9a0; --s3: #e29acb; --s4: #e6c229; --s5: #8fa8ff;
    --t0: #56b4e9; --t1: #e69f00; --t2: #e29acb; --t3: #35c9a0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 4px; }
p { margin: 0 0 12px; color: var(--soft); max-width: 75ch; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
.panels.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); }
figure { margin: 0; padding: 12px; background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; }
figure.wide { max-width: 720px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; overflow: visible; font: 12px system-ui, sans-serif; }
.grid { stroke: var(--rule); } .axis { fill: var(--soft); } .name, .value { fill: var(--ink); }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke: var(--c); } .dot { fill: var(--c); }
.name.s0, .name.s1, .name.s2, .name.s3, .name.s4, .name.s5 { fill: var(--c); font-weight: 600; }
.line.best { stroke-dasharray: 7 4; } .line.dashed { stroke-dasharray: 2 4; }
.fill { fill: var(--c); background: var(--c); }
.best { --c: var(--ink); } .fill.best { --c: var(--soft); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); }
.s3 { --c: var(--s3); } .s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
.t0 { --c: var(--t0); } .t1 { --c: var(--t1); } .t2 { --c: var(--t2); } .t3 { --c: var(--t3); }
.line.sampled { --c: var(--soft); stroke-width: 1; }
.here { stroke: var(--soft); stroke-dasharray: 3 3; } .heretext { fill: var(--soft); font-weight: 600; }
.area { fill: transparent; } .mark { outline: none; }
.tip { visibility: hidden; fill: var(--ink); font-weight: 600; pointer-events: none;
  paint-order: stroke; stroke: var(--panel); stroke-width: 5px; }
.mark:hover .tip, .mark:focus .tip { visibility: visible; }
.mark:hover .dot, .mark:focus .dot { stroke: var(--ink); stroke-width: 2; }
.mark:hover .fill, .mark:focus .fill { stroke: var(--ink); stroke-width: 1.5; }
.key { margin-right: 14px; white-space: nowrap; color: var(--ink); }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 5px; }
.scroll { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 4px 12px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
.text { text-align: left; }
th { color: var(--soft); font-weight: 600; }
"""
