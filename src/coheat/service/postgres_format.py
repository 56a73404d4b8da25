"""The tables of a PostgreSQL store, and the functions that write to them.

Each write is one call of one function: it takes the counter's row first, so that writers of all replicas come
one after the other and the numbers are in the order of committing; it looks whether the write was overtaken;
it writes all rows at once, and a row of `changes`, which replicas follow. One call is one round trip and one
transaction, so a replica that stops in the middle holds nobody up.

What an index holds of ids are hashes: a btree takes no text of thousands of bytes. That a bundle stands there
once is kept by the counter's row, which every writer holds.

A migration is never altered once it has been released; a new one is added at the end.
"""

from __future__ import annotations

KEPT_CHANGES = 100_000
"""Sequence numbers for which changes are kept, at least."""
CHANNEL = "coheat"
OVERTAKEN = "CH001"
"""SQLSTATE of a write that was refused because others were faster."""

TABLES = """
CREATE TABLE coheat.state (
    one integer PRIMARY KEY CHECK (one = 1), latest bigint NOT NULL, withdrawn bigint NOT NULL,
    dropped bigint NOT NULL, key_changes bigint NOT NULL
);
INSERT INTO coheat.state VALUES (1, 0, 0, 0, 0);

CREATE TABLE coheat.bundles (
    sequence bigint PRIMARY KEY, bundle_id text NOT NULL, born bigint NOT NULL,
    born_at double precision NOT NULL, item_ids text, created_on text, request text,
    written_at double precision NOT NULL, EXCLUDE USING hash (bundle_id WITH =)
);

CREATE TABLE coheat.interactions (
    sequence bigint PRIMARY KEY, pair bytea NOT NULL, user_id text NOT NULL, bundle_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('shown', 'clicked', 'took')), happened_at double precision NOT NULL,
    recommendation_id text NOT NULL, written_at double precision NOT NULL
);
CREATE UNIQUE INDEX interactions_by_pair ON coheat.interactions (pair, kind, recommendation_id);
CREATE INDEX interactions_by_bundle ON coheat.interactions USING hash (bundle_id);
CREATE INDEX interactions_shown ON coheat.interactions (md5(user_id), happened_at) WHERE kind = 'shown';

CREATE TABLE coheat.details (
    sequence bigint PRIMARY KEY, subject text NOT NULL CHECK (subject IN ('bundle', 'item', 'knob', 'model')),
    id text NOT NULL, columns jsonb NOT NULL, written_at double precision NOT NULL
);
CREATE INDEX details_by_id ON coheat.details USING hash (id);

CREATE TABLE coheat.changes (
    sequence bigint PRIMARY KEY, kind text NOT NULL, asked text NOT NULL, outcome text NOT NULL
);
CREATE TABLE coheat.audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sequence bigint, at timestamptz NOT NULL,
    key text, what text NOT NULL, about text NOT NULL
);
CREATE TABLE coheat.keys (
    name text PRIMARY KEY, scope text NOT NULL, sha256 text NOT NULL, created text NOT NULL
);
"""

FINISH = f"""
CREATE FUNCTION coheat.finish(
    before bigint, number bigint, kind text, asked text, outcome text, author text, about text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coheat.state SET latest = number;
    INSERT INTO coheat.changes VALUES (number, kind, asked, outcome);
    IF about IS NOT NULL THEN
        INSERT INTO coheat.audit (sequence, at, key, what, about)
        VALUES (number, clock_timestamp(), author, kind, finish.about);
    END IF;
    IF number / 1000 > before / 1000 AND number > {KEPT_CHANGES} THEN
        DELETE FROM coheat.changes c WHERE c.sequence <= number - {KEPT_CHANGES};
        UPDATE coheat.state SET dropped = number - {KEPT_CHANGES};
    END IF;
    PERFORM pg_notify('{CHANNEL}', number::text);
END $$;

CREATE FUNCTION coheat.refuse_overtaken(name text, seen bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM coheat.bundles b WHERE b.bundle_id = name AND b.sequence > seen)
        OR EXISTS (
            SELECT FROM coheat.details d WHERE d.id = name AND d.subject = 'bundle' AND d.sequence > seen
        )
    THEN
        RAISE EXCEPTION 'overtaken' USING ERRCODE = '{OVERTAKEN}';
    END IF;
END $$;

CREATE FUNCTION coheat.write_details(number bigint, about text, name text, said jsonb, now double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coheat.details SET sequence = number, columns = columns || said, written_at = now
    WHERE subject = about AND id = name;
    IF NOT FOUND THEN
        INSERT INTO coheat.details VALUES (number, about, name, said, now);
    END IF;
END $$;
"""

BUNDLES = """
CREATE FUNCTION coheat.put_bundle(
    name text, items text, made_on text, made_by text, said jsonb, now double precision, asked text,
    seen bigint, author text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    number bigint;
    there coheat.bundles%ROWTYPE;
    birth bigint := 0;
    birth_at double precision := 0;
BEGIN
    SELECT latest INTO before FROM coheat.state FOR UPDATE;
    PERFORM coheat.refuse_overtaken(name, seen);
    number := before + 1;
    SELECT * INTO there FROM coheat.bundles b WHERE b.bundle_id = name;
    IF there.item_ids IS NOT NULL THEN
        birth := there.born;
        birth_at := there.born_at;
        made_on := there.created_on;
        made_by := there.request;
    ELSIF made_on IS NOT NULL THEN
        birth := number;
        birth_at := now;
    END IF;
    IF there.sequence IS NULL THEN
        INSERT INTO coheat.bundles VALUES (number, name, birth, birth_at, items, made_on, made_by, now);
    ELSE
        UPDATE coheat.bundles SET sequence = number, born = birth, born_at = birth_at, item_ids = items,
            created_on = made_on, request = made_by, written_at = now
        WHERE sequence = there.sequence;
    END IF;
    IF said IS NOT NULL THEN
        PERFORM coheat.write_details(number, 'bundle', name, said, now);
    END IF;
    PERFORM coheat.finish(before, number, 'bundle', asked,
        json_build_array(made_on, birth, birth_at, made_by)::text, author, name);
    RETURN number;
END $$;

CREATE FUNCTION coheat.remove_bundle(
    name text, now double precision, asked text, seen bigint, author text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    number bigint;
BEGIN
    SELECT latest INTO before FROM coheat.state FOR UPDATE;
    PERFORM coheat.refuse_overtaken(name, seen);
    number := before + 1;
    DELETE FROM coheat.interactions WHERE bundle_id = name;
    DELETE FROM coheat.details WHERE subject = 'bundle' AND id = name;
    UPDATE coheat.bundles SET sequence = number, born = number, born_at = now, item_ids = NULL,
        created_on = NULL, request = NULL, written_at = now
    WHERE bundle_id = name;
    IF NOT FOUND THEN
        INSERT INTO coheat.bundles VALUES (number, name, number, now, NULL, NULL, NULL, now);
    END IF;
    PERFORM coheat.finish(before, number, 'bundle', asked,
        json_build_array(NULL, number, now, NULL)::text, author, name);
    RETURN number;
END $$;

CREATE FUNCTION coheat.put_columns(
    about text, name text, said jsonb, now double precision, asked text, seen bigint, author text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    number bigint;
BEGIN
    SELECT latest INTO before FROM coheat.state FOR UPDATE;
    IF about = 'bundle' THEN
        PERFORM coheat.refuse_overtaken(name, seen);
    END IF;
    number := before + 1;
    PERFORM coheat.write_details(number, about, name, said, now);
    PERFORM coheat.finish(before, number, 'details', asked, '', author, about || ' ' || name);
    RETURN number;
END $$;
"""

INTERACTIONS = f"""
CREATE FUNCTION coheat.add_interactions(
    pairs bytea[], users text[], bundles text[], kinds text[], times double precision[], lists text[],
    now double precision, asked text, seen bigint, OUT number bigint, OUT fresh bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    moved bigint[];
    moments double precision[];
BEGIN
    SELECT latest INTO before FROM coheat.state FOR UPDATE;
    IF seen < before AND EXISTS (
        SELECT FROM coheat.bundles b WHERE b.bundle_id = ANY (bundles) AND b.sequence > seen
            AND (b.item_ids IS NULL OR b.born > seen)
    ) THEN
        RAISE EXCEPTION 'overtaken' USING ERRCODE = '{OVERTAKEN}';
    END IF;
    -- OFFSET 0 keeps the planner from reading the whole table: each row is looked up.
    WITH given AS MATERIALIZED (
        SELECT g.*, known.sequence AS known, known.happened_at AS known_at
        FROM unnest(pairs, users, bundles, kinds, times, lists)
            WITH ORDINALITY AS g (pair, user_id, bundle_id, kind, happened_at, recommendation_id, place)
        LEFT JOIN LATERAL (
            SELECT i.sequence, i.happened_at FROM coheat.interactions i
            WHERE i.pair = g.pair AND i.kind = g.kind AND i.recommendation_id = g.recommendation_id OFFSET 0
        ) known ON true
    ), missing AS MATERIALIZED (
        SELECT g.*, row_number() OVER (ORDER BY g.place) AS step FROM given g WHERE g.known IS NULL
    ), written AS (
        INSERT INTO coheat.interactions
        SELECT before + m.step, m.pair, m.user_id, m.bundle_id, m.kind, m.happened_at,
            m.recommendation_id, now
        FROM missing m
    ), later AS (
        SELECT g.known, g.happened_at FROM given g WHERE g.kind <> 'took' AND g.happened_at > g.known_at
    )
    SELECT (SELECT coalesce(array_agg(m.place ORDER BY m.place), '{{}}') FROM missing m),
        (SELECT array_agg(l.known) FROM later l), (SELECT array_agg(l.happened_at) FROM later l)
    INTO fresh, moved, moments;
    IF moved IS NOT NULL THEN
        UPDATE coheat.interactions i SET happened_at = u.happened_at, written_at = now
        FROM unnest(moved, moments) AS u (sequence, happened_at) WHERE i.sequence = u.sequence;
    END IF;
    number := before + cardinality(fresh);
    IF number > before THEN
        PERFORM coheat.finish(before, number, 'interactions', asked, array_to_json(fresh)::text, NULL, NULL);
    END IF;
END $$;

CREATE FUNCTION coheat.remove_interactions(
    pairs bytea[], kinds text[], lists text[], author text, OUT number bigint, OUT outcome text
) LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    gone json;
    remaining json;
BEGIN
    SELECT latest INTO before FROM coheat.state FOR UPDATE;
    WITH removed AS (
        DELETE FROM coheat.interactions r WHERE r.sequence = ANY (ARRAY(
            SELECT DISTINCT known.sequence FROM unnest(pairs, kinds, lists) AS w (pair, kind, list)
            CROSS JOIN LATERAL (
                SELECT i.sequence FROM coheat.interactions i
                WHERE i.pair = w.pair AND (w.kind IS NULL OR i.kind = w.kind)
                    AND (w.list IS NULL OR i.recommendation_id = w.list) OFFSET 0
            ) known
        ))
        RETURNING r.*
    )
    SELECT json_agg(
        json_build_array(sequence, user_id, bundle_id, kind, happened_at, recommendation_id) ORDER BY sequence
    ) INTO gone FROM removed;
    number := before;
    outcome := '[[], []]';
    IF gone IS NULL THEN
        RETURN;
    END IF;
    SELECT coalesce(json_agg(json_build_array(r.user_id, r.bundle_id, r.kind)), '[]') INTO remaining
    FROM (SELECT DISTINCT user_id, bundle_id, kind FROM coheat.interactions WHERE pair = ANY (pairs)) r;
    number := before + 1;
    outcome := json_build_array(gone, remaining)::text;
    UPDATE coheat.state SET withdrawn = number;
    PERFORM coheat.finish(
        before, number, 'withdrawn', '', outcome, author, json_array_length(gone) || ' rows'
    );
END $$;
"""

MIGRATIONS: tuple[str, ...] = (TABLES + FINISH + BUNDLES + INTERACTIONS,)
"""From nothing to 1, from 1 to 2, and so on."""
