"""Guards of the link, of handles and of what is kept; see guards.py."""

from tests.security.guard import Guard

_HANDLES = "tests/security/test_handles.py"
_FUZZ = "tests/security/test_link_fuzz.py"
_OUTCOMES = "broker/chappie_broker/outcomes.py"
_HUB = "broker/chappie_broker/hub.py"
_DEVICES = "broker/chappie_broker/devices.py"
_DEVICE_TESTS = "tests/broker/test_devices.py"

LINK_GUARDS = (
    Guard(
        "S08",
        "a question belongs to its principal",
        "broker/chappie_broker/questions.py",
        "if row is None or row.principal != origin.principal:",
        "if row is None:",
        "tests/broker/test_questions.py::test_a_question_of_another_is_unknown",
    ),
    Guard(
        "S08",
        "a question belongs to its conversation",
        "broker/chappie_broker/questions.py",
        'if origin.kind != "shell" and (row.origin_kind, row.origin) != (origin.kind, origin.id):',
        "if False:",
        "tests/broker/test_questions.py::test_a_question_of_another_is_unknown",
    ),
    Guard(
        "S08",
        "a capability belongs to its principal",
        "broker/chappie_broker/capability.py",
        'said = body + principal.encode("utf-8", "surrogatepass")',
        "said = body",
        f"{_HANDLES}::test_an_address_given_to_another_principal_opens_nothing",
    ),
    Guard(
        "S08",
        "a reference is worth nothing without its capability",
        "broker/chappie_broker/reading.py",
        '        if not request.source.startswith("spill:"):\n            self._admit(request)\n',
        "",
        f"{_HANDLES}::test_an_address_given_to_another_principal_opens_nothing",
    ),
    Guard(
        "S08",
        "an upload belongs to its principal",
        "broker/chappie_broker/transfers.py",
        "if carriage is None or feed is None or carriage.operation.origin.principal != principal:",
        "if carriage is None or feed is None:",
        f"{_HANDLES}::test_bytes_for_an_upload_of_another_principal_are_not_taken",
    ),
    Guard(
        "S08",
        "a cursor that is not of this transcript is none",
        "agents/chappie_agents/transcript_index.py",
        '        row = self._row("select branch, position from entries where id = ?", entry)\n'
        "        if row is None:\n            raise unknown(entry, leaf)\n",
        '        row = self._row("select branch, position from entries where id = ?", entry)\n'
        "        if row is None:\n            return default, False\n",
        f"{_HANDLES}::test_a_cursor_of_another_session_is_an_unknown_one",
    ),
    Guard(
        "S11",
        "an agent speaks of its own sessions' operations",
        "broker/chappie_broker/dispatch.py",
        "        session = self._own(link, message.session)\n        if self.outcomes.asking(message):\n",
        "        session = self.directory.get(message.session)\n        if self.outcomes.asking(message):\n",
        f"{_HANDLES}::test_no_device_says_that_anothers_batch_waits_for_the_person",
    ),
    Guard(
        "S11",
        "a result that came early is its session's own",
        _OUTCOMES,
        "        results = self._orphans.pop((session, operation), {})\n",
        "        found = next((key for key in self._orphans if key[1] == operation), None)\n"
        "        results = self._orphans.pop(found, {})\n",
        f"{_HANDLES}::test_no_device_slips_a_result_into_anothers_batch",
    ),
    Guard(
        "S11",
        "what was never sent to an agent is not answered by it",
        _OUTCOMES,
        "    if operation.status in (Status.QUEUED, Status.LOST):\n",
        "    if False:\n",
        f"{_HANDLES}::test_an_agent_says_nothing_of_what_was_never_sent_to_it",
    ),
    Guard(
        "S11",
        "a device replaces its own token alone",
        _DEVICES,
        "            elif holder == self._local or enrolment.device not in (None, holder):\n"
        '                raise Forbidden("That token is another device\'s.")\n',
        "",
        f"{_DEVICE_TESTS}::test_a_device_replaces_its_own_token_alone",
    ),
    Guard(
        "S11",
        "a revoked token is none",
        _DEVICES,
        "            self._by_hash.pop(known.token_hash, None)\n",
        "",
        f"{_DEVICE_TESTS}::test_a_revoked_device_leaves_no_hash_and_its_name_may_be_used_again",
    ),
    Guard(
        "S11",
        "revoking cuts what is connected",
        _DEVICES,
        "                self._links.drop(device)\n",
        "                pass\n",
        _DEVICE_TESTS,
    ),
    Guard(
        "S14",
        "of a list that does not fit, the first fault is enough",
        "chappie_bridge/wire/blocks.py",
        '            part["fail_fast"] = True\n',
        "            pass\n",
        f"{_FUZZ}::test_a_list_of_faults_is_not_listed",
    ),
    Guard(
        "S16",
        "a name that leads inside is not connected to",
        "broker/chappie_broker/download.py",
        "if not allowed.anywhere(to) and not all(is_open(address) for address in addresses):",
        "if False:",
        "tests/broker/test_download.py::test_a_name_that_leads_inside_is_not_connected_to",
    ),
    Guard(
        "S18",
        "a certificate is compared before anything is said",
        "agents/chappie_agents/enrol.py",
        "        if isinstance(connection.sock, ssl.SSLSocket) and not same(connection.sock, pin):\n",
        "        if False:\n",
        _DEVICE_TESTS,
    ),
    Guard(
        "S18",
        "a role sends its own messages",
        "chappie_bridge/wire/link.py",
        "if isinstance(kind, str) and kind in sendable:",
        "if isinstance(kind, str) and kind in _BY_TYPE:",
        "tests/wire/test_endpoint.py",
    ),
    Guard(
        "S18",
        "off this machine its own token is nobody's",
        _HUB,
        "known = self._authenticate if ssl is None else self._from_elsewhere",
        "known = self._authenticate",
        "tests/story/test_devices.py::test_another_certificate_gets_nothing",
    ),
    Guard(
        "S22",
        "handshakes that are not finished are few",
        "broker/chappie_broker/door.py",
        "            if len(self._half_open) >= MAX_HALF_OPEN:\n",
        "            if False:\n",
        f"{_DEVICE_TESTS}::test_silent_handshakes_make_room",
    ),
    Guard(
        "S22",
        "connections without a known credential are few",
        _HUB,
        "        if len(self._strangers) >= self._max_greeting:\n",
        "        if False:\n",
        "tests/broker/test_hub.py::test_of_those_who_say_nothing_the_oldest_makes_room",
    ),
    Guard(
        "S21",
        "of an app's tokens the registry has hashes",
        "broker/chappie_broker/apps.py",
        'return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()\n',
        "return token\n",
        "tests/security/test_every_secret.py",
    ),
)
