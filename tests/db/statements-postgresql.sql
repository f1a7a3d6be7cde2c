-- Every statement of each kind of machine. Written by a test, which says how: tests/db/test_statements.py
-- What Django writes itself is named and not shown; what was shown before is named as well.

-- ====================================================================================================
-- plain: lab.ByHand
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_byhand"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_byhandstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_byhand"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_byhandstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_byhand"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_byhandstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_byhand
COMMIT;
-- Django: SELECT lab_byhand

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_byhand"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_byhand"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_byhand"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_byhandstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- ====================================================================================================
-- with an auto_now field: lab.Stamped
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_stamped"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "modified" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_stampedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- update=
WITH moved AS (
        UPDATE "lab_stamped"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "name" =
            %s, "modified" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_stampedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_stamped"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "modified" = %s
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_stampedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_stamped"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_stampedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_stamped
COMMIT;
-- Django: SELECT lab_stamped

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_stamped"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_stamped"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_stamped"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "modified" = %s
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_stampedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- ====================================================================================================
-- with fields of its own in the audit table: lab.Reasoned
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_reasoned"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_reasonedstatetransition" (id, from_status, to_status, metadata, "actor_id", "reason", instance_id,
        sequence, transitioned_at)
    SELECT id, from_status, to_status, metadata, "actor_id", "reason", instance_id, sequence, transitioned_at
    FROM "lab_reasonedstatetransition"
    WHERE false
    UNION ALL
    SELECT %s, %s, %s, %s, %s, %s, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_reasoned"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_reasonedstatetransition" (id, from_status, to_status, metadata, "actor_id", "reason", instance_id,
        sequence, transitioned_at)
    SELECT id, from_status, to_status, metadata, "actor_id", "reason", instance_id, sequence, transitioned_at
    FROM "lab_reasonedstatetransition"
    WHERE false
    UNION ALL
    SELECT %s, %s, %s, %s, %s, %s, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_reasoned"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_reasonedstatetransition" (id, from_status, to_status, metadata, "actor_id", "reason", instance_id,
        sequence, transitioned_at)
    SELECT id, from_status, to_status, metadata, "actor_id", "reason", instance_id, sequence, transitioned_at
    FROM "lab_reasonedstatetransition"
    WHERE false
    UNION ALL
    SELECT %s, %s, %s, %s, %s, %s, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_reasoned
COMMIT;
-- Django: SELECT lab_reasoned

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_reasoned"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_reasoned"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
BEGIN;
-- Django: SELECT lab_reasoned
-- again: a move
COMMIT;

-- ====================================================================================================
-- with a save() of its own: lab.Hooked
-- ====================================================================================================

-- a move
BEGIN;
WITH moved AS (
        UPDATE "lab_hooked"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_hookedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move in a transaction
BEGIN;
SAVEPOINT;
-- again: a move (2)
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
RELEASE SAVEPOINT;
COMMIT;

-- update=
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- expected= a state
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- expected= a number
BEGIN;
WITH moved AS (
        UPDATE "lab_hooked"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_hookedstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- save=False and save()
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_hooked
COMMIT;
-- Django: SELECT lab_hooked

-- force_transition_to()
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN;
-- again: a move (2)
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
BEGIN;
-- Django: SELECT lab_hooked
SAVEPOINT;
-- again: a move (2)
-- Django: UPDATE lab_hooked
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_hooked"
    WHERE "id" = %s FOR NO KEY UPDATE;
RELEASE SAVEPOINT;
COMMIT;

-- ====================================================================================================
-- with guards: lab.Document
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_document"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_documentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- update=
WITH moved AS (
        UPDATE "lab_document"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "words" =
            %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_documentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_document"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_documentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_document"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_documentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_document
COMMIT;
-- Django: SELECT lab_document

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_document"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_document"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
BEGIN;
-- Django: SELECT lab_document
-- again: a move
COMMIT;

-- ====================================================================================================
-- whose history outlives its rows: lab.Kept
-- ====================================================================================================

-- a move
-- Django: SELECT lab_keptstatetransition
WITH moved AS (
        UPDATE "lab_kept"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_keptstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- Django: SELECT lab_keptstatetransition
-- again: a move (2)
COMMIT;

-- expected= a state
-- Django: SELECT lab_keptstatetransition
-- again: a move (2)

-- expected= a number
-- Django: SELECT lab_keptstatetransition
WITH moved AS (
        UPDATE "lab_kept"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_keptstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
-- Django: SELECT lab_keptstatetransition
WITH moved AS (
        UPDATE "lab_kept"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_keptstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_kept
COMMIT;
-- Django: SELECT lab_kept

-- force_transition_to()
-- Django: SELECT lab_keptstatetransition
-- again: a move (2)

-- a move that the graph does not have
-- Django: SELECT lab_keptstatetransition
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_kept"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- Django: SELECT lab_keptstatetransition
BEGIN;
-- Django: SELECT lab_keptstatetransition
-- Django: SELECT lab_kept
-- again: a move (2)
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_kept"
    WHERE "id" = %s FOR NO KEY UPDATE;
ROLLBACK;

-- bulk_transition()
-- Django: SELECT lab_kept
-- Django: SELECT lab_keptstatetransition
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_kept"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_keptstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- ====================================================================================================
-- with a key that is unique while it is live: lab.Shipment
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_shipment"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_shipmentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- update=
BEGIN;
WITH moved AS (
        UPDATE "lab_shipment"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "number"
            = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_shipmentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_shipment"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_shipmentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_shipment"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_shipmentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_shipment
COMMIT;
-- Django: SELECT lab_shipment

-- force_transition_to()
BEGIN;
-- again: a move
COMMIT;

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_shipment"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_shipment"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_shipment"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_shipmentstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- create()
INSERT INTO "lab_shipment" ... ON CONFLICT ("number")
    WHERE "status" = 'NEW' DO NOTHING ...;

-- create() in a transaction
BEGIN;
INSERT INTO "lab_shipment" ... ON CONFLICT ("number")
    WHERE "status" = 'NEW' DO NOTHING ...;
COMMIT;

-- create(), refused
INSERT INTO "lab_shipment" ... ON CONFLICT ("number")
    WHERE "status" = 'NEW' DO NOTHING ...;
-- Django: SELECT lab_shipment

-- save()
-- Django: UPDATE lab_shipment

-- save() in a transaction
BEGIN;
SAVEPOINT;
-- Django: UPDATE lab_shipment
RELEASE SAVEPOINT;
COMMIT;

-- get_or_start(), found
-- Django: SELECT lab_shipment

-- get_or_start(), started
-- Django: SELECT lab_shipment
INSERT INTO "lab_shipment" ... ON CONFLICT ("number")
    WHERE "status" = 'NEW' DO NOTHING ...;

-- ====================================================================================================
-- of a multi-table child: lab.Car
-- ====================================================================================================

-- a move
BEGIN;
WITH moved AS (
        UPDATE "lab_vehicle"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "modified" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_vehiclestatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_car
COMMIT;

-- a move in a transaction
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_car
COMMIT;

-- update=
BEGIN;
WITH moved AS (
        UPDATE "lab_vehicle"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "plate" =
            %s, "modified" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_vehiclestatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_car
COMMIT;

-- expected= a state
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_car
COMMIT;

-- expected= a number
BEGIN;
WITH moved AS (
        UPDATE "lab_vehicle"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "modified" = %s
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_vehiclestatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_car
COMMIT;

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_vehicle"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp()
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at)
    INSERT INTO "lab_vehiclestatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint;
-- Django: UPDATE lab_vehicle
COMMIT;
-- Django: SELECT lab_vehicle

-- force_transition_to()
BEGIN;
-- again: a move (2)
-- Django: UPDATE lab_car
COMMIT;

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_vehicle"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN;
-- again: a move (2)
SELECT "status"::text, "status_sequence"::bigint
    FROM "lab_vehicle"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- bulk_transition()
BEGIN;
-- Django: SELECT lab_car
-- again: a move (2)
-- Django: UPDATE lab_car
COMMIT;

-- ====================================================================================================
-- timed: lab.ByWorker
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_byworker"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_byworker"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_byworker"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_byworker
COMMIT;
-- Django: SELECT lab_byworker

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_byworker"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_byworker"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_byworker"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_byworker"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_byworker"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_byworker"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_byworker" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_byworker" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_byworker" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_byworker" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_byworker" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_byworker" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_byworker"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_byworker"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_byworker"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_byworker"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_byworker"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_byworker"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_byworker"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_byworker"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_byworker"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_byworkerstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_byworker
-- Django: SELECT lab_byworker

-- release()
-- Django: UPDATE lab_byworker
-- Django: SELECT lab_byworker

-- resume()
-- Django: UPDATE lab_byworker
-- Django: SELECT lab_byworker

-- ====================================================================================================
-- timed, with an auto_now field: lab.Lot
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_lot"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = '', "touched_at" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- update=
WITH moved AS (
        UPDATE "lab_lot"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = '', "amount" = %s, "touched_at" = %s
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_lot"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = '', "touched_at" = %s
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_lot"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_lot
COMMIT;
-- Django: SELECT lab_lot

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_lot"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_lot"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = '', "touched_at" = %s
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_lot"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_lot" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- enter a state with update=
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_lot"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_lot" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = '', "amount" = %s
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- enter a state with values for each row
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::integer[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record,
            metadata, own_0, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_lot"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_lot" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = '', "amount" = given.own_0
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_lotstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- ====================================================================================================
-- timed, with a text for a key: lab.Coupon
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_coupon"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_coupon"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_coupon"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_coupon
COMMIT;
-- Django: SELECT lab_coupon

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_coupon"
    WHERE "code" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_coupon"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "code" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_coupon"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "status",
        "status_sequence", to_json("status_changed_at")::text, "code", to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_coupon"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "code" <>
                ALL(%s::varchar[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "status",
        "status_sequence", to_json("status_changed_at")::text, "code", to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "status",
        "status_sequence", to_json("status_changed_at")::text, "code", to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_coupon"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "code" =
                ANY(%s::varchar[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "status",
        "status_sequence", to_json("status_changed_at")::text, "code", to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "code" AS key, "status_next_at" AS next_at
        FROM "lab_coupon"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_coupon" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."code" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_coupon" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_coupon" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_coupon" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_coupon" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_coupon" AS t, unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."code" = ANY(%s::varchar[]) AND given.key = t."code" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_coupon"
    WHERE "code" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_coupon"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_coupon"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_coupon"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_coupon"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "code" <> ALL(%s::varchar[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_coupon"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_coupon"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "code" <> ALL(%s::varchar[]))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_coupon"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_coupon"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_couponstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_coupon
-- Django: SELECT lab_coupon

-- release()
-- Django: UPDATE lab_coupon
-- Django: SELECT lab_coupon

-- resume()
-- Django: UPDATE lab_coupon
-- Django: SELECT lab_coupon

-- ====================================================================================================
-- timed, whose rows run ahead: lab.Relay
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_relay"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_relay"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_relay"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_relay
COMMIT;
-- Django: SELECT lab_relay

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_relay"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_relay"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_relay"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "script", "note", "text", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_relay"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "script", "note", "text", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "script", "note", "text", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_relay"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "script", "note", "text", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_relay"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_relay" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- enter a state and go on there
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::text[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, status, next_at,
            record, metadata, lease_owner, lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_relay" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_token" = t."status_lease_token" + 1, "status_lease_owner" =
            given.lease_owner, "status_lease_expires_at" = clock_timestamp() + make_interval(secs =>
            given.lease_expires_at), "status_claimed_at" = clock_timestamp(), "status_attempts" = t."status_attempts" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata, 0::float8 AS read_0, t."id" AS read_1,
            t."script" AS read_2, t."note" AS read_3, t."text" AS read_4, t."status" AS read_5, t."status_sequence" AS
            read_6, to_json(t."status_changed_at")::text AS read_7, to_json(t."status_next_at")::text AS read_8,
            t."status_next_at_pinned" AS read_9, t."status_lease_owner" AS read_10,
            to_json(t."status_lease_expires_at")::text AS read_11, t."status_lease_token" AS read_12,
            to_json(t."status_claimed_at")::text AS read_13, t."status_attempts" AS read_14, t."status_failures" AS
            read_15, t."status_crashes" AS read_16, t."status_error" AS read_17),
    recorded AS (
        INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place, read_0, read_1, read_2, read_3, read_4, read_5, read_6, read_7, read_8, read_9, read_10, read_11,
        read_12, read_13, read_14, read_15, read_16, read_17
    FROM moved;

-- find a row that went on unheard
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::float8[]) WITH ORDINALITY AS given (key,
            was_lease_token, was_lease_owner, lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status_lease_owner" = given.was_lease_owner
    RETURNING given.place, (extract(epoch FROM statement_timestamp()) - extract(epoch FROM
        t."status_changed_at"))::float8, t."id", t."script", t."note", t."text", t."status", t."status_sequence",
        to_json(t."status_changed_at")::text, to_json(t."status_next_at")::text, t."status_next_at_pinned",
        t."status_lease_owner", to_json(t."status_lease_expires_at")::text, t."status_lease_token",
        to_json(t."status_claimed_at")::text, t."status_attempts", t."status_failures", t."status_crashes",
        t."status_error";

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_relay" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_relay" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_relay"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_relay"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_relay"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_relay"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_relay"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_relay"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_relay"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_relay"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_relay"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_relaystatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_relay
-- Django: SELECT lab_relay

-- release()
-- Django: UPDATE lab_relay
-- Django: SELECT lab_relay

-- resume()
-- Django: UPDATE lab_relay
-- Django: SELECT lab_relay

-- ====================================================================================================
-- timed, whose rows say their queue and priority: lab.Dispatch
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_dispatch"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_dispatch"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_dispatch"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_dispatch
COMMIT;
-- Django: SELECT lab_dispatch

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_dispatch"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_dispatch"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_dispatch"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- claim by priority
WITH due AS MATERIALIZED (
        SELECT near.key
        FROM (
            SELECT
            WHERE EXISTS ( SELECT FROM unnest(%s::text[]) AS wanted (state) CROSS JOIN LATERAL ( SELECT FROM
                "lab_dispatch" WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() ORDER BY
                "status_next_at" LIMIT 1) AS first) ) AS any_due
        CROSS JOIN unnest(%s::text[], %s::bigint[]) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "priority" = wanted.priority AND "priority" >= wanted.priority AND
                "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at" IS NULL THEN
                "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS near LIMIT %s)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim by queue
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (
            SELECT
            WHERE EXISTS ( SELECT FROM unnest(%s::text[]) AS wanted (state) CROSS JOIN LATERAL ( SELECT FROM
                "lab_dispatch" WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() ORDER BY
                "status_next_at" LIMIT 1) AS first) ) AS any_due
        CROSS JOIN unnest(%s::int[], %s::int[]) AS urgency (first, last)
        CROSS JOIN LATERAL (
            SELECT near.key
            FROM unnest((%s::text[])[urgency.first:urgency.last], (%s::text[])[urgency.first:urgency.last],
                (%s::bigint[])[urgency.first:urgency.last]) AS wanted (state, queue, priority)
            CROSS JOIN LATERAL (
                SELECT "id" AS key, "status_next_at" AS next_at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "priority" =
                    wanted.priority AND "priority" >= wanted.priority AND "status_next_at" <= statement_timestamp() AND
                    CASE WHEN "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
                ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS near
            ORDER BY near.next_at LIMIT %s) AS found LIMIT %s)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim suspects of queues
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN ("status", "queue") IN (SELECT * FROM unnest(%s::text[], %s::text[])) ELSE false END
        ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "steps", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- priorities in use
WITH RECURSIVE level AS (
        SELECT wanted.state, first.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "status_next_at" IS NOT NULL
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "status_next_at" IS NOT NULL AND "priority" < wanted.priority
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, NULL, priority, at <= statement_timestamp(), (extract(epoch FROM at) - extract(epoch FROM
        statement_timestamp()))::float8
    FROM level AS wanted;

-- priorities in use in queues
WITH RECURSIVE level AS (
        SELECT wanted.state, wanted.queue, first.*
        FROM unnest(%s::text[], %s::text[]) AS wanted (state, queue)
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "status_next_at" IS
                NOT NULL
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, wanted.queue, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "status_next_at" IS
                NOT NULL AND "priority" < wanted.priority
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, queue, priority, at <= statement_timestamp(), (extract(epoch FROM CASE WHEN at > statement_timestamp()
        THEN at ELSE ( SELECT "status_next_at" FROM "lab_dispatch" WHERE "status" = wanted.state AND "queue" =
        wanted.queue AND "queue" >= wanted.queue AND "priority" = wanted.priority AND "priority" >= wanted.priority AND
        "status_next_at" > statement_timestamp() ORDER BY "status_next_at" LIMIT 1) END) - extract(epoch FROM
        statement_timestamp()))::float8
    FROM level AS wanted;

-- the same, for a claim
WITH RECURSIVE level AS (
        SELECT wanted.state, wanted.queue, first.*
        FROM unnest(%s::text[], %s::text[]) AS wanted (state, queue)
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "status_next_at" IS
                NOT NULL
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, wanted.queue, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT "priority" AS found_priority, "status_next_at" AS found_at
            FROM "lab_dispatch"
            WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "status_next_at" IS
                NOT NULL AND "priority" < wanted.priority
            ORDER BY "priority" DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, queue, priority, at <= statement_timestamp(), (extract(epoch FROM at) - extract(epoch FROM
        statement_timestamp()))::float8
    FROM level AS wanted;

-- recover by priority
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[], %s::bigint[]) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, wanted.priority,
                    "status_next_at" AS at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "priority" = wanted.priority AND "priority" >= wanted.priority AND
                    "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_dispatch"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state, priority HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE
        NOT is_taken));

-- recover by queue
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS wanted (state, queue, priority)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, wanted.queue,
                    wanted.priority, "status_next_at" AS at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "queue" = wanted.queue AND "queue" >= wanted.queue AND "priority" =
                    wanted.priority AND "priority" >= wanted.priority AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_dispatch"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state, queue, priority HAVING count(*) = %s AND max(at) = min(at) FILTER
        (WHERE NOT is_taken));

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_dispatch" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- enter a state and go on there
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::text[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, status, next_at,
            record, metadata, lease_owner, lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_dispatch" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_token" = t."status_lease_token" + 1, "status_lease_owner" =
            given.lease_owner, "status_lease_expires_at" = clock_timestamp() + make_interval(secs =>
            given.lease_expires_at), "status_claimed_at" = clock_timestamp(), "status_attempts" = t."status_attempts" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata, 0::float8 AS read_0, t."id" AS read_1,
            t."queue" AS read_2, t."priority" AS read_3, t."steps" AS read_4, t."status" AS read_5, t."status_sequence"
            AS read_6, to_json(t."status_changed_at")::text AS read_7, to_json(t."status_next_at")::text AS read_8,
            t."status_next_at_pinned" AS read_9, t."status_lease_owner" AS read_10,
            to_json(t."status_lease_expires_at")::text AS read_11, t."status_lease_token" AS read_12,
            to_json(t."status_claimed_at")::text AS read_13, t."status_attempts" AS read_14, t."status_failures" AS
            read_15, t."status_crashes" AS read_16, t."status_error" AS read_17),
    recorded AS (
        INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place, read_0, read_1, read_2, read_3, read_4, read_5, read_6, read_7, read_8, read_9, read_10, read_11,
        read_12, read_13, read_14, read_15, read_16, read_17
    FROM moved;

-- find a row that went on unheard
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::float8[]) WITH ORDINALITY AS given (key,
            was_lease_token, was_lease_owner, lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status_lease_owner" = given.was_lease_owner
    RETURNING given.place, (extract(epoch FROM statement_timestamp()) - extract(epoch FROM
        t."status_changed_at"))::float8, t."id", t."queue", t."priority", t."steps", t."status", t."status_sequence",
        to_json(t."status_changed_at")::text, to_json(t."status_next_at")::text, t."status_next_at_pinned",
        t."status_lease_owner", to_json(t."status_lease_expires_at")::text, t."status_lease_token",
        to_json(t."status_claimed_at")::text, t."status_attempts", t."status_failures", t."status_crashes",
        t."status_error";

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_dispatch" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_dispatch" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_dispatch"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_dispatch"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_dispatch"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_dispatch"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_dispatch"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_dispatch"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_dispatch"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dispatchstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_dispatch
-- Django: SELECT lab_dispatch

-- release()
-- Django: UPDATE lab_dispatch
-- Django: SELECT lab_dispatch

-- resume()
-- Django: UPDATE lab_dispatch
-- Django: SELECT lab_dispatch

-- ====================================================================================================
-- timed, whose rows may say them or not: lab.Wish
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_wish"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_wish"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_wish"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_wish
COMMIT;
-- Django: SELECT lab_wish

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_wish"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_wish"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP
            LOCKED)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_wish"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- claim by priority
WITH due AS MATERIALIZED (
        SELECT near.key
        FROM (
            SELECT
            WHERE EXISTS ( SELECT FROM unnest(%s::text[]) AS wanted (state) CROSS JOIN LATERAL ( SELECT FROM "lab_wish"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() ORDER BY "status_next_at"
                LIMIT 1) AS first) ) AS any_due
        CROSS JOIN unnest(%s::text[], %s::bigint[]) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND COALESCE("priority", 0) = wanted.priority AND COALESCE("priority", 0) >=
                wanted.priority AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at" IS
                NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS near LIMIT %s)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim by queue
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (
            SELECT
            WHERE EXISTS ( SELECT FROM unnest(%s::text[]) AS wanted (state) CROSS JOIN LATERAL ( SELECT FROM "lab_wish"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() ORDER BY "status_next_at"
                LIMIT 1) AS first) ) AS any_due
        CROSS JOIN unnest(%s::int[], %s::int[]) AS urgency (first, last)
        CROSS JOIN LATERAL (
            SELECT near.key
            FROM unnest((%s::text[])[urgency.first:urgency.last], (%s::text[])[urgency.first:urgency.last],
                (%s::bigint[])[urgency.first:urgency.last]) AS wanted (state, queue, priority)
            CROSS JOIN LATERAL (
                SELECT "id" AS key, "status_next_at" AS next_at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                    wanted.queue AND COALESCE("priority", 0) = wanted.priority AND COALESCE("priority", 0) >=
                    wanted.priority AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                    "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
                ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS near
            ORDER BY near.next_at LIMIT %s) AS found LIMIT %s)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- claim suspects of queues
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN ("status", COALESCE("queue", '')) IN (SELECT * FROM unnest(%s::text[], %s::text[])) ELSE false
            END
        ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP
            LOCKED)
    UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "queue", "priority", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error";

-- priorities in use
WITH RECURSIVE level AS (
        SELECT wanted.state, first.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND "status_next_at" IS NOT NULL
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND "status_next_at" IS NOT NULL AND COALESCE("priority", 0) < wanted.priority
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, NULL, priority, at <= statement_timestamp(), (extract(epoch FROM at) - extract(epoch FROM
        statement_timestamp()))::float8
    FROM level AS wanted;

-- priorities in use in queues
WITH RECURSIVE level AS (
        SELECT wanted.state, wanted.queue, first.*
        FROM unnest(%s::text[], %s::text[]) AS wanted (state, queue)
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                wanted.queue AND "status_next_at" IS NOT NULL
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, wanted.queue, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                wanted.queue AND "status_next_at" IS NOT NULL AND COALESCE("priority", 0) < wanted.priority
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, queue, priority, at <= statement_timestamp(), (extract(epoch FROM CASE WHEN at > statement_timestamp()
        THEN at ELSE ( SELECT "status_next_at" FROM "lab_wish" WHERE "status" = wanted.state AND COALESCE("queue", '') =
        wanted.queue AND COALESCE("queue", '') >= wanted.queue AND COALESCE("priority", 0) = wanted.priority AND
        COALESCE("priority", 0) >= wanted.priority AND "status_next_at" > statement_timestamp() ORDER BY
        "status_next_at" LIMIT 1) END) - extract(epoch FROM statement_timestamp()))::float8
    FROM level AS wanted;

-- the same, for a claim
WITH RECURSIVE level AS (
        SELECT wanted.state, wanted.queue, first.*
        FROM unnest(%s::text[], %s::text[]) AS wanted (state, queue)
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                wanted.queue AND "status_next_at" IS NOT NULL
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS first (priority, at)
        UNION ALL
        SELECT wanted.state, wanted.queue, next.*
        FROM level AS wanted
        CROSS JOIN LATERAL (
            SELECT COALESCE("priority", 0) AS found_priority, "status_next_at" AS found_at
            FROM "lab_wish"
            WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                wanted.queue AND "status_next_at" IS NOT NULL AND COALESCE("priority", 0) < wanted.priority
            ORDER BY COALESCE("priority", 0) DESC, "status_next_at" LIMIT 1) AS next)
    SELECT state, queue, priority, at <= statement_timestamp(), (extract(epoch FROM at) - extract(epoch FROM
        statement_timestamp()))::float8
    FROM level AS wanted;

-- recover by priority
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[], %s::bigint[]) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, wanted.priority,
                    "status_next_at" AS at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND COALESCE("priority", 0) = wanted.priority AND COALESCE("priority", 0)
                    >= wanted.priority AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_wish"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state, priority HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE
        NOT is_taken));

-- recover by queue
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS wanted (state, queue, priority)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, wanted.queue,
                    wanted.priority, "status_next_at" AS at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND COALESCE("queue", '') = wanted.queue AND COALESCE("queue", '') >=
                    wanted.queue AND COALESCE("priority", 0) = wanted.priority AND COALESCE("priority", 0) >=
                    wanted.priority AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_wish"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state, queue, priority HAVING count(*) = %s AND max(at) = min(at) FILTER
        (WHERE NOT is_taken));

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_wish" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_wish" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_wish" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_wish" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_wish" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_wish" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_wish"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_wish"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_wish"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_wish"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_wish"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_wish"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_wish"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_wishstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_wish
-- Django: SELECT lab_wish

-- release()
-- Django: UPDATE lab_wish
-- Django: SELECT lab_wish

-- resume()
-- Django: UPDATE lab_wish
-- Django: SELECT lab_wish

-- ====================================================================================================
-- timed, whose tries are kept: lab.Effort
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_effort"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_effort"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_effort"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_effort
COMMIT;
-- Django: SELECT lab_effort

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_effort"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_effort"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_effort"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "note", "status", "status_sequence", to_json("status_changed_at")::text, "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", to_json("status_next_at")::text, "status_next_at_pinned",
        "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs => %s))::text),
        "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts", "status_failures",
        "status_crashes", "status_error";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_effort"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "note", "status", "status_sequence", to_json("status_changed_at")::text, "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", to_json("status_next_at")::text, "status_next_at_pinned",
        "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs => %s))::text),
        "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts", "status_failures",
        "status_crashes", "status_error";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "note", "status", "status_sequence", to_json("status_changed_at")::text, "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", to_json("status_next_at")::text, "status_next_at_pinned",
        "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs => %s))::text),
        "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts", "status_failures",
        "status_crashes", "status_error";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_effort"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "note", "status", "status_sequence", to_json("status_changed_at")::text, "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", to_json("status_next_at")::text, "status_next_at_pinned",
        "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs => %s))::text),
        "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts", "status_failures",
        "status_crashes", "status_error";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_effort"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_effort" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- enter a state after a try that failed
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::text[], %s::float8[], %s::float8[], %s::text[], %s::text[]) WITH ORDINALITY AS given (key,
            was_lease_token, was_status, status, next_at, record, metadata, error, started, ended, outcome, traceback,
            place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key, "status_attempts" AS attempts, "status_sequence" AS sequence, "status" AS status,
            "status_lease_owner" AS lease_owner, "status_claimed_at" AS claimed_at
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_effort" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => given.next_at),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved),
    tried AS (
        INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at,
            ended_at, outcome, error, traceback)
        SELECT locked.key, locked.attempts, locked.sequence, locked.status, locked.lease_owner, locked.claimed_at,
            clock_timestamp() - make_interval(secs => given.started), clock_timestamp() - make_interval(secs =>
            given.ended), given.outcome, given.error, given.traceback
        FROM moved JOIN given USING (place) JOIN locked ON locked.key = given.key
        WHERE given.outcome IS NOT NULL ON CONFLICT DO NOTHING)
    SELECT place
    FROM moved;

-- stay after a try
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[],
            %s::float8[], %s::float8[], %s::text[], %s::text[]) WITH ORDINALITY AS given (key, was_lease_token,
            was_status, failures, error, next_at, horizon, started, ended, outcome, traceback, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key, "status_attempts" AS attempts, "status_sequence" AS sequence, "status" AS status,
            "status_lease_owner" AS lease_owner, "status_claimed_at" AS claimed_at
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    written AS (UPDATE "lab_effort" AS t
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" +
            1, "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at"
            = LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs
            => given.horizon)), "status_next_at_pinned" = FALSE
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING given.place),
    tried AS (
        INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at,
            ended_at, outcome, error, traceback)
        SELECT locked.key, locked.attempts, locked.sequence, locked.status, locked.lease_owner, locked.claimed_at,
            clock_timestamp() - make_interval(secs => given.started), clock_timestamp() - make_interval(secs =>
            given.ended), given.outcome, given.error, given.traceback
        FROM written JOIN given USING (place) JOIN locked ON locked.key = given.key
        WHERE given.outcome IS NOT NULL ON CONFLICT DO NOTHING)
    SELECT place
    FROM written;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_effort" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_effort" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_effort" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_effort" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_effort" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_effort"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_effort"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key, "status_attempts" AS attempts, "status_sequence" AS sequence, "status" AS status,
            "status_lease_owner" AS lease_owner, "status_claimed_at" AS claimed_at
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_effort"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING "id" AS key),
    tried AS (
        INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at,
            ended_at, outcome, error, traceback)
        SELECT key, attempts, sequence, status, lease_owner, claimed_at, NULL, clock_timestamp(), 'crashed', %s ||
            lease_owner || %s, ''
        FROM left_open JOIN freed USING (key) ON CONFLICT DO NOTHING)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_effort"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key, "status_attempts" AS attempts, "status_sequence" AS sequence, "status" AS status,
            "status_lease_owner" AS lease_owner, "status_claimed_at" AS claimed_at
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_effort"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING "id" AS key),
    tried AS (
        INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at,
            ended_at, outcome, error, traceback)
        SELECT key, attempts, sequence, status, lease_owner, claimed_at, NULL, clock_timestamp(), 'crashed', %s ||
            lease_owner || %s, ''
        FROM left_open JOIN freed USING (key) ON CONFLICT DO NOTHING)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_effort"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_effort"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_effort"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_effort"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => %s), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_effortstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_effort
-- Django: SELECT lab_effort

-- release()
-- Django: UPDATE lab_effort
-- Django: SELECT lab_effort

-- resume()
-- Django: UPDATE lab_effort
-- Django: SELECT lab_effort

-- ====================================================================================================
-- whose rows wait for events: lab.Deal
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_deal"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN "status_inbox" > %s::bigint THEN
            0::float8 ELSE %s::float8 END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_deal"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN "status_inbox" > %s::bigint THEN
            0::float8 ELSE %s::float8 END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_deal"
        SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" =
            clock_timestamp() + make_interval(secs => CASE WHEN "status_inbox" > %s::bigint THEN 0::float8 ELSE
            %s::float8 END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" =
            NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0,
            "status_error" = ''
        WHERE "code" = %s AND "status" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_deal
COMMIT;
-- Django: SELECT lab_deal

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_deal"
    WHERE "code" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_deal"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN "status_inbox" > %s::bigint THEN
            0::float8 ELSE %s::float8 END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "code" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_deal"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "code",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error", "status_inbox", "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", "payment_inbox";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_deal"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "code" <>
                ALL(%s::varchar[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "code",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error", "status_inbox", "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", "payment_inbox";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "code",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error", "status_inbox", "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", "payment_inbox";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "code" AS key, "status_next_at" AS next_at
            FROM "lab_deal"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "code" =
                ANY(%s::varchar[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "code",
        "status", "status_sequence", to_json("status_changed_at")::text, to_json("status_next_at")::text,
        "status_next_at_pinned", "status_lease_owner", (SELECT to_json(statement_timestamp() + make_interval(secs =>
        %s))::text), "status_lease_token", (SELECT to_json(statement_timestamp())::text), "status_attempts",
        "status_failures", "status_crashes", "status_error", "status_inbox", "payment_status", "payment_sequence",
        "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
        "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
        "payment_crashes", "payment_error", "payment_inbox";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "code" AS key, "status_next_at" AS next_at
        FROM "lab_deal"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata,
            seen, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_deal" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN t."status_inbox" >
            given.seen::bigint THEN 0::float8 ELSE given.next_at::float8 END), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        FROM given
        WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."code" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata, coalesce(t."status_inbox" > given.seen, false)
            AS read_0),
    recorded AS (
        INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place, read_0
    FROM moved;

-- enter a state and take an event
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[],
            %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata,
            seen, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_deal" AS t
        SET "status" = given.status, "status_sequence" = t."status_sequence" + 1, "status_changed_at" =
            clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN t."status_inbox" >
            given.seen::bigint THEN 0::float8 ELSE given.next_at::float8 END), "status_next_at_pinned" = FALSE,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" +
            1, "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
        FROM given
        WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."code" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata, coalesce(t."status_inbox" > given.seen, false)
            AS read_0),
    recorded AS (
        INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved),
    taken AS (
        UPDATE "lab_dealstateevent" AS e
        SET taken_by = moved.sequence
        FROM moved JOIN unnest(%s::bigint[], %s::bigint[]) AS take (place, number) ON take.place = moved.place
        WHERE e.instance_id = ANY(ARRAY(SELECT key FROM moved)) AND e.instance_id = moved.key AND e.number = take.number
            AND e.taken_by IS NULL)
    SELECT place, read_0
    FROM moved;

-- deliver()
WITH target AS MATERIALIZED (
        SELECT "code" AS key, "status" AS status, "status_inbox" AS inbox
        FROM "lab_deal"
        WHERE "code" = %s FOR NO KEY UPDATE),
    put AS (
        INSERT INTO "lab_dealstateevent" (id, instance_id, number, name, payload, dedup_key, delivered_at)
        SELECT %s::uuid, key, inbox + 1, %s, %s::jsonb, %s, clock_timestamp()
        FROM target
        WHERE status <> ALL(%s::text[]) ON CONFLICT (instance_id, dedup_key) DO NOTHING
        RETURNING instance_id, number),
    woken AS (
        UPDATE "lab_deal" AS t
        SET "status_inbox" = put.number, "status_next_at" = CASE WHEN t."status" = ANY(%s::text[]) AND
            t."status_lease_expires_at" IS NULL AND t."status_error" = '' THEN LEAST(t."status_next_at",
            clock_timestamp()) ELSE t."status_next_at" END
        FROM put
        WHERE t."code" = put.instance_id
        RETURNING t."status" = ANY(%s::text[]) AND t."status_lease_expires_at" IS NULL AND t."status_next_at" <=
            clock_timestamp() AS is_woken)
    SELECT target.status::text, (SELECT number FROM put)::bigint, coalesce((SELECT is_woken FROM woken), false)
    FROM target;

-- bulk_deliver()
BEGIN;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = ANY(%s::varchar[])
    ORDER BY "code" FOR NO KEY UPDATE;
WITH given AS MATERIALIZED (
        SELECT *
        FROM unnest(%s::varchar[], %s::uuid[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS given (key, id,
            name, payload, dedup_key, place)),
    fresh AS MATERIALIZED (
        SELECT given.*, t."status_inbox" + row_number() OVER (PARTITION BY given.key ORDER BY given.place) AS number,
            EXISTS (SELECT 1 FROM unnest(%s::text[], %s::text[]) AS awaited (state, name) WHERE awaited.state =
            t."status" AND awaited.name = given.name) AS is_awaited
        FROM given JOIN "lab_deal" AS t ON t."code" = given.key
        WHERE t."code" = ANY(%s::varchar[]) AND t."status" <> ALL(%s::text[]) AND NOT EXISTS (SELECT 1 FROM
            "lab_dealstateevent" AS e WHERE e.instance_id = given.key AND e.dedup_key = given.dedup_key)),
    put AS (
        INSERT INTO "lab_dealstateevent" (id, instance_id, number, name, payload, dedup_key, delivered_at)
        SELECT id, key, number, name, payload::jsonb, dedup_key, clock_timestamp()
        FROM fresh
        ORDER BY key, number),
    counted AS MATERIALIZED (
        SELECT key, max(number) AS number, bool_or(is_awaited) AS is_awaited
        FROM fresh GROUP BY key),
    woken AS (
        UPDATE "lab_deal" AS t
        SET "status_inbox" = counted.number, "status_next_at" = CASE WHEN counted.is_awaited AND
            t."status_lease_expires_at" IS NULL AND t."status_error" = '' THEN LEAST(t."status_next_at",
            clock_timestamp()) ELSE t."status_next_at" END
        FROM counted
        WHERE t."code" = ANY(%s::varchar[]) AND t."code" = counted.key
        RETURNING t."code" AS key, counted.is_awaited AND t."status_lease_expires_at" IS NULL AND t."status_next_at" <=
            clock_timestamp() AS is_woken)
    SELECT given.place, t."status"::text, fresh.number::bigint, coalesce(fresh.is_awaited AND woken.is_woken, false)
    FROM given LEFT JOIN "lab_deal" AS t ON t."code" = given.key AND t."code" = ANY(%s::varchar[]) LEFT JOIN fresh ON
        fresh.place = given.place LEFT JOIN woken ON woken.key = given.key;
COMMIT;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[],
            %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon,
            seen, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_deal" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => CASE WHEN t."status_inbox" > given.seen::bigint THEN 0::float8
        ELSE given.next_at::float8 END), t."status_changed_at" + make_interval(secs => given.horizon)),
        "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place, coalesce(t."status_inbox" > given.seen, false);

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_deal" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_deal" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::varchar[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_deal" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."code" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."code" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_deal" AS t, unnest(%s::varchar[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)
    WHERE t."code" = ANY(%s::varchar[]) AND given.key = t."code" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_deal"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_deal"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_deal"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_deal"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "code" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "code" <> ALL(%s::varchar[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_deal"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "code" AS key
        FROM "lab_deal"
        WHERE "code" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "code" <> ALL(%s::varchar[]))
        ORDER BY "code" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_deal"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "code" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_deal"
        SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" = clock_timestamp(),
            "status_next_at" = clock_timestamp() + make_interval(secs => CASE WHEN "status_inbox" > %s::bigint THEN
            0::float8 ELSE %s::float8 END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        WHERE "code" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "code" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_dealstatetransition" (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_deal
-- Django: SELECT lab_deal

-- release()
-- Django: UPDATE lab_deal
-- Django: SELECT lab_deal

-- resume()
-- Django: UPDATE lab_deal
-- Django: SELECT lab_deal

-- ====================================================================================================
-- timed, whose rows leave children behind: lab.Expedition
-- ====================================================================================================

-- a move
WITH moved AS (
        UPDATE "lab_expedition"
        SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN
            "status_sequence" + 1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1,
            "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => %s),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error"
            = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- a move in a transaction
BEGIN;
-- again: a move
COMMIT;

-- expected= a state
-- again: a move

-- expected= a number
WITH moved AS (
        UPDATE "lab_expedition"
        SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN
            "status_sequence" + 1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1,
            "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => %s),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error"
            = ''
        WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- save=False and save()
BEGIN;
WITH moved AS (
        UPDATE "lab_expedition"
        SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN
            "status_sequence" + 1 ELSE "status_cancels" END, "status_sequence" = "status_sequence" + 1,
            "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => %s),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error"
            = ''
        WHERE "id" = %s AND "status" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);
-- Django: UPDATE lab_expedition
COMMIT;
-- Django: SELECT lab_expedition

-- force_transition_to()
-- again: a move

-- a move that the graph does not have
BEGIN;
SELECT "status"::text, "status_sequence"::bigint, "status_lease_token"::bigint
    FROM "lab_expedition"
    WHERE "id" = %s FOR NO KEY UPDATE;
COMMIT;

-- a move of an instance that is stale, refused
-- again: a move
BEGIN;
-- again: a move that the graph does not have (2)
COMMIT;

-- bulk_transition()
WITH found (key, was) AS MATERIALIZED (... FOR NO KEY UPDATE),
    moved AS (
        UPDATE "lab_expedition"
        SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN
            "status_sequence" + 1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1,
            "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => %s),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error"
            = ''
        WHERE "id" = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at),
    recorded AS (
        INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid, was, %s, %s::jsonb,
            key, sequence, changed_at
        FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
    FROM found
    WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1)
    ORDER BY key;

-- claim what is due
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_expedition"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "plan", "note", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error",
        "status_cancels";

-- claim all but what is set aside
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_expedition"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" <> ALL(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "plan", "note", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error",
        "status_cancels";

-- claim what a worker may have died of
WITH due AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "status_crashes" = 1 AND "status_next_at" <= statement_timestamp() AND CASE WHEN "status_lease_expires_at"
            IS NULL THEN "status" = ANY(%s) ELSE false END
        ORDER BY "status_crashes", "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "plan", "note", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error",
        "status_cancels";

-- claim one of these
WITH due AS MATERIALIZED (
        SELECT found.key
        FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
        CROSS JOIN LATERAL (
            SELECT "id" AS key, "status_next_at" AS next_at
            FROM "lab_expedition"
            WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
                "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END AND "id" = ANY(%s::bigint[])
            ORDER BY "status_next_at" LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
        ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statement_timestamp() + make_interval(secs => %s), "status_claimed_at" = statement_timestamp(),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', "status_changed_at"), "id",
        "plan", "note", "status", "status_sequence", to_json("status_changed_at")::text,
        to_json("status_next_at")::text, "status_next_at_pinned", "status_lease_owner", (SELECT
        to_json(statement_timestamp() + make_interval(secs => %s))::text), "status_lease_token", (SELECT
        to_json(statement_timestamp())::text), "status_attempts", "status_failures", "status_crashes", "status_error",
        "status_cancels";

-- what a claim would take
SELECT found.key
    FROM (VALUES (%s::text, %s::int)) AS wanted (state, priority)
    CROSS JOIN LATERAL (
        SELECT "id" AS key, "status_next_at" AS next_at
        FROM "lab_expedition"
        WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp() AND CASE WHEN
            "status_lease_expires_at" IS NULL THEN "status_crashes" = 0 ELSE false END
        ORDER BY "status_next_at" LIMIT %s) AS found
    ORDER BY wanted.priority DESC, found.next_at LIMIT %s;

-- enter a state
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::uuid[], %s::text[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, status, next_at, record, metadata, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    moved AS (
        UPDATE "lab_expedition" AS t
        SET "status_cancels" = CASE WHEN t."status_cancels" = 0 AND t."status" IN ('WALKING', 'GUIDED') THEN
            t."status_sequence" + 1 ELSE t."status_cancels" END, "status" = given.status, "status_sequence" =
            t."status_sequence" + 1, "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() +
            make_interval(secs => given.next_at), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
            "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1, "status_failures" = 0,
            "status_crashes" = 0, "status_error" = ''
        FROM given
        WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
            given.was_lease_token AND t."status" = given.was_status
        RETURNING t."id" AS key, t."status_sequence" AS sequence, t."status_changed_at" AS changed_at, given.place,
            given.record, given.was_status, given.status, given.metadata),
    recorded AS (
        INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
            transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at
        FROM moved)
    SELECT place
    FROM moved;

-- stay
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::text[], %s::float8[], %s::float8[]) WITH
            ORDINALITY AS given (key, was_lease_token, was_status, failures, error, next_at, horizon, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_expedition" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = given.failures, "status_error" = given.error, "status_next_at" =
        LEAST(clock_timestamp() + make_interval(secs => given.next_at), t."status_changed_at" + make_interval(secs =>
        given.horizon)), "status_next_at_pinned" = FALSE
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token AND t."status" = given.was_status
    RETURNING given.place;

-- release
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_expedition" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- release before it was tried
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_expedition" AS t
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = t."status_lease_token" + 1,
        "status_attempts" = t."status_attempts" - 1
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- beat
WITH given AS MATERIALIZED (SELECT *
        FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS given (key, was_lease_token,
            lease_expires_at, place)),
    locked AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM given))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE "lab_expedition" AS t
    SET "status_lease_expires_at" = clock_timestamp() + make_interval(secs => given.lease_expires_at)
    FROM given
    WHERE t."id" = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t."id" AND t."status_lease_token" =
        given.was_lease_token
    RETURNING given.place;

-- held
SELECT given.place
    FROM "lab_expedition" AS t, unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS given (key, was_lease_token,
        place)
    WHERE t."id" = ANY(%s::bigint[]) AND given.key = t."id" AND t."status_lease_token" = given.was_lease_token;

-- lock a held row
SELECT 1
    FROM "lab_expedition"
    WHERE "id" = %s AND "status_lease_token" = %s FOR NO KEY UPDATE SKIP LOCKED;

-- recover what has run out
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_expires_at" <= statement_timestamp()) AS is_wanted, wanted.state, "status_next_at" AS
                    at
                FROM "lab_expedition"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_expires_at" <= statement_timestamp())
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_expedition"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- recover what a dead worker held
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s) AS is_wanted, wanted.state, "status_next_at" AS at
                FROM "lab_expedition"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s)
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_expedition"
        SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1,
            "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- give back what was claimed unheard
WITH walked AS MATERIALIZED (
        SELECT found.*
        FROM unnest(%s::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place
            FROM (
                SELECT "id" AS key, "status_lease_expires_at" IS NOT NULL OR "status_crashes" > 0 AS is_taken,
                    ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[])) AS is_wanted, wanted.state,
                    "status_next_at" AS at
                FROM "lab_expedition"
                WHERE "status" = wanted.state AND "status_next_at" <= statement_timestamp()
                ORDER BY "status_next_at" LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT "id" AS key
        FROM "lab_expedition"
        WHERE "id" = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND "status_lease_expires_at" IS NOT NULL AND
            ("status_lease_owner" = %s AND "id" <> ALL(%s::bigint[]))
        ORDER BY "id" FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE "lab_expedition"
        SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" +
            1, "status_attempts" = "status_attempts" - 1
        WHERE "id" = ANY(ARRAY(SELECT key FROM left_open))
        RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
        EXISTS(SELECT 1 FROM walked GROUP BY state HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT
        is_taken));

-- a single move under a lease
WITH moved AS (
        UPDATE "lab_expedition"
        SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN
            "status_sequence" + 1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1,
            "status_changed_at" = clock_timestamp(), "status_next_at" = clock_timestamp() + make_interval(secs => %s),
            "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
            "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error"
            = ''
        WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s
        RETURNING "id" AS key, "status_sequence" AS sequence, "status_changed_at" AS changed_at, (extract(epoch FROM
            "status_next_at") * 1000000)::bigint AS next_at, "status_lease_token"::bigint AS token)
    INSERT INTO "lab_expeditionstatetransition" (id, from_status, to_status, metadata, instance_id, sequence,
        transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at
    FROM moved
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint, (SELECT next_at FROM moved),
        (SELECT token FROM moved);

-- run_at()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition

-- release()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition

-- resume()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition
