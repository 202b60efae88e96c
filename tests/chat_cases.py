"""Chats and templates that between them use what published chat templates use."""

from __future__ import annotations

from typing import Any

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wind & rain <now>, 'here'",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Città"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "none", "parameters": {}}},
]
DOCUMENTS = [{"title": "One", "text": "first"}, {"title": "Two", "text": "<second>"}]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calling(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "weather", "arguments": arguments}
    return [{"id": "call00001", "type": "function", "function": function}]


RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": '{"t": 3}'}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [user("Hi")],
    "system": [{"role": "system", "content": "Be <b>brief</b> & kind."}, user("  Hi \n")],
    "turns": [user("a"), assistant("b\n"), user("c"), assistant("d"), user("e")],
    "empty": [user(""), assistant(""), user("")],
    "odd-role": [{"role": "wizard", "content": "x"}, user("y")],
    "two-users": [user("a"), user("b")],
    "parts": [user([{"type": "text", "text": "one"}, {"type": "text", "text": " two"}])],
    "thought": [user("q"), assistant("<think>\nhm\n</think>\n\nyes"), user("r")],
    "reasoning": [user("q"), assistant("yes", reasoning_content="hm"), user("r")],
    "reasoning-elsewhere": [user("q"), assistant("yes", thinking="hm")],
    "call-object": [
        user("q"),
        assistant("", tool_calls=calling({"city": 'Pa"ris', "n": [1, 2.5, True, None]})),
        RESULT,
        assistant("fine"),
    ],
    "call-text": [user("q"), assistant(None, tool_calls=calling('{"city": "Rome"}')), RESULT],
    "characters": [user("Grüße 👋🏽 \u2028 <|im_end|> {{ 7*7 }} {% if %}")],
    "open": [user("q"), assistant("Sure, ")],
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "no-tools": {"tools": []},
    "quick": {"add_generation_prompt": True, "enable_thinking": False},
    "slow": {"add_generation_prompt": True, "enable_thinking": True, "tools": TOOLS},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS},
    "continued": {"continue_final_message": True},
    "reasoning-continued": {"continue_final_message": "reasoning_content"},
    "further": {"date_string": "1 May", "bos_token": "<begin>", "flags": {"x": (1, 2)}},
}

TEMPLATES = {
    "turns": """
{%- for message in messages %}
    {%- if message['content'] is string %}
        {%- set text = message['content'] %}
    {%- else %}
        {%- set text = message['content'] | selectattr('type', 'equalto', 'text')
            | map(attribute='text') | join %}
    {%- endif %}
    {{- '<|' + message['role'] + '|>\\n' + text + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
""",
    "strict": """{{ bos_token }}
{% if messages[0].role == 'system' %}
  {% set system = messages[0].content | trim %}
  {% set rest = messages[1:] %}
{% else %}
  {% set system = '' %}
  {% set rest = messages %}
{% endif %}
{% for message in rest %}
  {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('roles have to alternate, got ' ~ message.role) }}
  {% endif %}
[{{ message.role | upper }}]{{ (system ~ '\\n' if loop.first and system else '') }}
  {#- blanks around are not part of it -#}
  {{ message.content | trim }}
  {% if loop.last and add_generation_prompt %}
[ASSISTANT]
  {% endif %}
{% endfor %}
""",
    "tools": """
{%- macro argument(name, value) -%}
    {{ name }}={{ value if value is string else value | tojson }};
{%- endmacro -%}
{%- if tools %}
Tools: {{ tools | tojson }}
    {%- for tool in tools if tool.function.parameters %}
{{ tool.function.name }} {{ tool.function | tojson(indent=4) }}
    {%- endfor %}
{%- elif tools is not none and tools is defined %} no tools
{%- endif %}
{%- for message in messages %}
    {%- for call in message.tool_calls or [] %}
        {%- set given = call.function.arguments %}
        {%- if given is mapping %}
            {%- for name, value in given.items() %}
                {{- argument(name, value) }}
            {%- endfor %}
        {%- else %}
            {{- given }}
        {%- endif %}
{{ call | tojson(separators=(',', ':'), sort_keys=true) }}
    {%- else %}
[{{ message.role }}{{ ' ' ~ message.tool_call_id if 'tool_call_id' in message }}]
        {{- message.content }}
    {%- endfor %}
{%- endfor %}
""",
    "reasoning": """
{%- set ns = namespace(last=-1, seen=[]) %}
{%- for message in messages[::-1] %}
    {%- if ns.last < 0 and message.role == 'user' %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {%- continue %}
    {%- endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set thought = message.reasoning_content | default('', true) %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|' ~ message.role ~ '|>' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {%- if thought and loop.index0 > ns.last %}
                {{- '<think>' ~ thought ~ '</think>' }}
            {%- endif %}
            {%- set content = content ~ '<|end|>' %}
            {{- content }}
        {%- endgeneration %}
        {{- content | length }}
    {%- else %}
        {{- content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "further": """{{ strftime_now('%Y') | length }} {{ date_string | default('today') }}
{% set facts = dict(a=1, b=[2]) %}
{{ facts | tojson }} {{ facts.items() | list }} {{ flags }} {{ missing }}{{ missing is defined }}
{{ bos_token ~ unk_token ~ pad_token ~ sep_token }} {{ range(3) | list }} {{ 'a' * 3 }}
{% for document in documents or [] %}
  {{ loop.index }}/{{ loop.length }} {{ document['title'] }}: {{ document.text | e }}
{% endfor %}
{% filter indent(2) %}{{ messages[-1].content }}
x{% endfilter %}
{{ messages[0].content[::-1] if messages[0].content is string }}""",
}
