-- Every statement of each kind of machine. Written by a test, which says how: tests/db/test_statements.py
-- What Django writes itself is named and not shown; what was shown before is named as well.

-- ====================================================================================================
-- plain: lab.ByHand
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_byhand"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_byhandstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_byhand"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_byhand"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_byhand"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_byhand
COMMIT;
-- Django: SELECT lab_byhand

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_byhand"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_byhand"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_byhand"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_byhand"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_byhand
-- Django: SELECT lab_byhand
-- Django: UPDATE lab_byhand
-- Django: SELECT lab_byhand
-- Django: INSERT lab_byhandstatetransition
COMMIT;

-- ====================================================================================================
-- with an auto_now field: lab.Stamped
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_stamped"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "modified" = %s
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_stampedstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_stamped"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- update=
BEGIN IMMEDIATE;
UPDATE "lab_stamped"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "name" = %s, "modified" = %s
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_stamped"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "modified" = %s
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_stamped"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_stamped
COMMIT;
-- Django: SELECT lab_stamped

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_stamped"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_stamped"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_stamped"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_stamped"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_stamped
-- Django: SELECT lab_stamped
-- Django: UPDATE lab_stamped
-- Django: SELECT lab_stamped
-- Django: INSERT lab_stampedstatetransition
COMMIT;

-- ====================================================================================================
-- with fields of its own in the audit table: lab.Reasoned
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_reasoned"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_reasonedstatetransition" ("id", "from_status", "to_status", "metadata", "actor_id", "reason",
    "instance_id", "sequence", "transitioned_at")
    SELECT %s, %s, %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_reasoned"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_reasoned"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_reasoned"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_reasoned
COMMIT;
-- Django: SELECT lab_reasoned

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_reasoned"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_reasoned"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_reasoned"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_reasoned"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_reasoned
-- Django: SELECT lab_reasoned
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- ====================================================================================================
-- with a save() of its own: lab.Hooked
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_hookedstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_hooked"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
SAVEPOINT;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
RELEASE SAVEPOINT;
COMMIT;

-- update=
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
COMMIT;
-- Django: SELECT lab_hooked

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_hooked
-- Django: SELECT lab_hooked
SAVEPOINT;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_hooked
UPDATE "lab_hooked"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_hooked"
    WHERE "id" = %s;
RELEASE SAVEPOINT;
COMMIT;

-- ====================================================================================================
-- with guards: lab.Document
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_document"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_documentstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_document"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
SAVEPOINT;
-- again: a move (2)
-- again: a move (3)
RELEASE SAVEPOINT;
COMMIT;

-- update=
BEGIN IMMEDIATE;
UPDATE "lab_document"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "words" = %s
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_document"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
SAVEPOINT;
UPDATE "lab_document"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
RELEASE SAVEPOINT;
-- Django: UPDATE lab_document
COMMIT;
-- Django: SELECT lab_document

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_document"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_document"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_document"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_document"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_document
-- Django: SELECT lab_document
SAVEPOINT;
-- again: a move (2)
-- again: a move (3)
RELEASE SAVEPOINT;
COMMIT;

-- ====================================================================================================
-- whose history outlives its rows: lab.Kept
-- ====================================================================================================

-- a move
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
UPDATE "lab_kept"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_keptstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_kept"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- Django: SELECT lab_keptstatetransition
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a state
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a number
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
UPDATE "lab_kept"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (4)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
-- Django: SELECT lab_keptstatetransition
UPDATE "lab_kept"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (4)
-- Django: UPDATE lab_kept
COMMIT;
-- Django: SELECT lab_kept

-- force_transition_to()
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- a move that the graph does not have
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
UPDATE "lab_kept"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_kept"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
-- Django: SELECT lab_keptstatetransition
-- Django: UPDATE lab_kept
-- Django: SELECT lab_kept
-- again: a move (3)
UPDATE "lab_kept"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_kept"
    WHERE "id" = %s;
ROLLBACK;

-- bulk_transition()
-- Django: SELECT lab_kept
-- Django: SELECT lab_keptstatetransition
BEGIN IMMEDIATE;
-- Django: UPDATE lab_kept
-- Django: SELECT lab_kept
-- Django: UPDATE lab_kept
-- Django: SELECT lab_kept
-- Django: INSERT lab_keptstatetransition
COMMIT;

-- ====================================================================================================
-- with a key that is unique while it is live: lab.Shipment
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_shipment"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_shipmentstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_shipment"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- update=
BEGIN IMMEDIATE;
UPDATE "lab_shipment"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "number" = %s
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_shipment"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_shipment"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_shipment
COMMIT;
-- Django: SELECT lab_shipment

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_shipment"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_shipment"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_shipment"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_shipment"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_shipment
-- Django: SELECT lab_shipment
-- Django: UPDATE lab_shipment
-- Django: SELECT lab_shipment
-- Django: INSERT lab_shipmentstatetransition
COMMIT;

-- create()
-- Django: INSERT lab_shipment

-- create() in a transaction
BEGIN IMMEDIATE;
-- Django: INSERT lab_shipment
COMMIT;

-- create(), refused
-- Django: INSERT lab_shipment
-- Django: SELECT lab_shipment

-- save()
-- Django: UPDATE lab_shipment

-- save() in a transaction
BEGIN IMMEDIATE;
SAVEPOINT;
-- Django: UPDATE lab_shipment
RELEASE SAVEPOINT;
COMMIT;

-- get_or_start(), found
-- Django: SELECT lab_shipment

-- get_or_start(), started
-- Django: SELECT lab_shipment
-- Django: INSERT lab_shipment

-- ====================================================================================================
-- of a multi-table child: lab.Car
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_vehicle"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "modified" = %s
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_vehiclestatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_vehicle"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
-- Django: UPDATE lab_car
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- update=
BEGIN IMMEDIATE;
UPDATE "lab_vehicle"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "plate" = %s, "modified" = %s
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_vehicle"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "modified" = %s
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_vehicle"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now'))
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- Django: UPDATE lab_vehicle
COMMIT;
-- Django: SELECT lab_vehicle

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_vehicle"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_vehicle"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_vehicle"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence"
    FROM "lab_vehicle"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_vehicle
-- Django: SELECT lab_car
-- again: a move (2)
-- again: a move (3)
-- Django: UPDATE lab_car
COMMIT;

-- ====================================================================================================
-- timed: lab.ByWorker
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_byworkerstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_byworker"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_byworker"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
-- Django: UPDATE lab_byworker
COMMIT;
-- Django: SELECT lab_byworker

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_byworker"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_byworker"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_byworker"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_byworker
-- Django: SELECT lab_byworker
-- Django: UPDATE lab_byworker
-- Django: SELECT lab_byworker
-- Django: INSERT lab_byworkerstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_byworker"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "status", "status_sequence", "status_changed_at", "status_next_at",
    "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token", "status_claimed_at",
    "status_attempts", "status_failures", "status_crashes", "status_error"
    FROM "lab_byworker"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_byworker"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_byworker"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_byworker"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_byworker"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_byworker"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_byworker"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_byworker"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_byworker"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_byworker"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_byworker"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        '', "touched_at" = %s
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_lotstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_lot"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- update=
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        '', "amount" = %s, "touched_at" = %s
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        '', "touched_at" = %s
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
-- Django: UPDATE lab_lot
COMMIT;
-- Django: SELECT lab_lot

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_lot"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_lot
-- Django: SELECT lab_lot
-- Django: UPDATE lab_lot
-- Django: SELECT lab_lot
-- Django: INSERT lab_lotstatetransition
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_lot"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- enter a state with update=
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_lot"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        '', "amount" = %s
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- enter a state with values for each row
BEGIN IMMEDIATE;
UPDATE "lab_lot"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
-- again: enter a state with update= (3)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_lot"
    WHERE "id" = %s;
COMMIT;

-- ====================================================================================================
-- timed, with a text for a key: lab.Coupon
-- ====================================================================================================

-- a move
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "code" = %s AND "status" = %s;
INSERT INTO "lab_couponstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "code", "status_sequence", "status_changed_at"
    FROM "lab_coupon"
    WHERE "code" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_coupon"
    WHERE "code" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "code" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "code" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
-- Django: UPDATE lab_coupon
COMMIT;
-- Django: SELECT lab_coupon

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_coupon"
    WHERE "code" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_coupon"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_coupon"
    WHERE "code" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_coupon
-- Django: SELECT lab_coupon
-- Django: UPDATE lab_coupon
-- Django: SELECT lab_coupon
-- Django: INSERT lab_couponstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_coupon"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "code" = %s;
SELECT "status_changed_at", "status", "status_sequence", "status_changed_at", "code", "status_next_at",
    "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token", "status_claimed_at",
    "status_attempts", "status_failures", "status_crashes", "status_error"
    FROM "lab_coupon"
    WHERE "code" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_coupon"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "code" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_coupon"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_coupon"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "code" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "code" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT "status_changed_at"
    FROM "lab_coupon"
    WHERE "code" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_coupon"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "code" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT 1
    FROM "lab_coupon"
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT 1
    FROM "lab_coupon"
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_coupon"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT
        IN ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_coupon"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT IN
        (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_coupon"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "code" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_relaystatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_relay"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
-- Django: UPDATE lab_relay
COMMIT;
-- Django: SELECT lab_relay

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_relay"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_relay
-- Django: SELECT lab_relay
-- Django: UPDATE lab_relay
-- Django: SELECT lab_relay
-- Django: INSERT lab_relaystatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_relay"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "script", "note", "text", "status", "status_sequence", "status_changed_at",
    "status_next_at", "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token",
    "status_claimed_at", "status_attempts", "status_failures", "status_crashes", "status_error"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_relay"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_relay"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_relay"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

-- enter a state and go on there
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s,
        "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s), "status_claimed_at" =
        statemachine_fields_now(julianday('now')), "status_attempts" = "status_attempts" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (6)
COMMIT;

-- find a row that went on unheard
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s AND "status_lease_owner" = %s;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (6)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_relay"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_relay"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_relay"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_relay"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_relay"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_relay"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_relay"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_relay"
    WHERE "id" = %s;
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_dispatchstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_dispatch"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_dispatch"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
-- Django: UPDATE lab_dispatch
COMMIT;
-- Django: SELECT lab_dispatch

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_dispatch"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_dispatch"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_dispatch"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_dispatch
-- Django: SELECT lab_dispatch
-- Django: UPDATE lab_dispatch
-- Django: SELECT lab_dispatch
-- Django: INSERT lab_dispatchstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "queue", "priority", "steps", "status", "status_sequence", "status_changed_at",
    "status_next_at", "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token",
    "status_claimed_at", "status_attempts", "status_failures", "status_crashes", "status_error"
    FROM "lab_dispatch"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- claim by priority
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- claim by queue
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        (("status" = %s AND "queue" = %s) OR ("status" = %s AND "queue" = %s))
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim suspects of queues
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_dispatch"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1 AND
        (("status" = %s AND "queue" = %s) OR ("status" = %s AND "queue" = %s))
    ORDER BY "status_crashes", "priority" DESC, "status_next_at" LIMIT %s;
COMMIT;

-- priorities in use
SELECT statemachine_fields_now(julianday('now'));
SELECT "status_next_at"
    FROM "lab_dispatch"
    WHERE "status" = %s AND "status_next_at" <= %s
    ORDER BY "status_next_at" LIMIT 1;
SELECT "status_next_at"
    FROM "lab_dispatch"
    WHERE "status" = %s AND "status_next_at" > %s
    ORDER BY "status_next_at" LIMIT 1;

-- priorities in use in queues
SELECT statemachine_fields_now(julianday('now'));
SELECT "status_next_at"
    FROM "lab_dispatch"
    WHERE "status" = %s AND "status_next_at" <= %s AND (("status" = %s AND "queue" = %s))
    ORDER BY "status_next_at" LIMIT 1;
SELECT "status_next_at"
    FROM "lab_dispatch"
    WHERE "status" = %s AND "status_next_at" > %s AND (("status" = %s AND "queue" = %s))
    ORDER BY "status_next_at" LIMIT 1;
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)

-- the same, for a claim
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)

-- recover by priority
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_dispatch"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover by queue
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_dispatch"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        () AND (("status" = %s AND "queue" = %s) OR ("status" = %s AND "queue" = %s));
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- enter a state and go on there
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s,
        "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s), "status_claimed_at" =
        statemachine_fields_now(julianday('now')), "status_attempts" = "status_attempts" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (6)
COMMIT;

-- find a row that went on unheard
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s AND "status_lease_owner" = %s;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (6)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_dispatch"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_dispatch"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_dispatch"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_dispatch"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: recover by priority (4)
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_dispatch"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_dispatch"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_wishstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_wish"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
-- Django: UPDATE lab_wish
COMMIT;
-- Django: SELECT lab_wish

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_wish"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_wish
-- Django: SELECT lab_wish
-- Django: UPDATE lab_wish
-- Django: SELECT lab_wish
-- Django: INSERT lab_wishstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "queue", "priority", "status", "status_sequence", "status_changed_at",
    "status_next_at", "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token",
    "status_claimed_at", "status_attempts", "status_failures", "status_crashes", "status_error"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- claim by priority
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- claim by queue
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        (("status" = %s AND COALESCE("queue", '') = %s) OR ("status" = %s AND COALESCE("queue", '') = %s))
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
COMMIT;

-- claim suspects of queues
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_wish"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1 AND
        (("status" = %s AND COALESCE("queue", '') = %s) OR ("status" = %s AND COALESCE("queue", '') = %s))
    ORDER BY "status_crashes", COALESCE("priority", 0) DESC, "status_next_at" LIMIT %s;
COMMIT;

-- priorities in use
SELECT statemachine_fields_now(julianday('now'));
SELECT "status_next_at"
    FROM "lab_wish"
    WHERE "status" = %s AND "status_next_at" <= %s
    ORDER BY "status_next_at" LIMIT 1;
SELECT "status_next_at"
    FROM "lab_wish"
    WHERE "status" = %s AND "status_next_at" > %s
    ORDER BY "status_next_at" LIMIT 1;

-- priorities in use in queues
SELECT statemachine_fields_now(julianday('now'));
SELECT "status_next_at"
    FROM "lab_wish"
    WHERE "status" = %s AND "status_next_at" <= %s AND (("status" = %s AND COALESCE("queue", '') = %s))
    ORDER BY "status_next_at" LIMIT 1;
SELECT "status_next_at"
    FROM "lab_wish"
    WHERE "status" = %s AND "status_next_at" > %s AND (("status" = %s AND COALESCE("queue", '') = %s))
    ORDER BY "status_next_at" LIMIT 1;
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)

-- the same, for a claim
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)
SELECT statemachine_fields_now(julianday('now'));
-- again: priorities in use in queues (2)
-- again: priorities in use in queues (3)

-- recover by priority
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_wish"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover by queue
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_wish"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        () AND (("status" = %s AND COALESCE("queue", '') = %s) OR ("status" = %s AND COALESCE("queue", '') = %s));
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_wish"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_wish"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_wish"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_wish"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: recover by priority (4)
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_wish"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_wish"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_wish"
    WHERE "id" = %s;
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_effortstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_effort"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE,
        "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_failures" = 0, "status_crashes" = 0, "status_error" = ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
-- Django: UPDATE lab_effort
COMMIT;
-- Django: SELECT lab_effort

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_effort"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_effort
-- Django: SELECT lab_effort
-- Django: UPDATE lab_effort
-- Django: SELECT lab_effort
-- Django: INSERT lab_effortstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "note", "status", "status_sequence", "status_changed_at", "payment_status",
    "payment_sequence", "payment_changed_at", "payment_next_at", "payment_next_at_pinned", "payment_lease_owner",
    "payment_lease_expires_at", "payment_lease_token", "payment_claimed_at", "payment_attempts", "payment_failures",
    "payment_crashes", "payment_error", "status_next_at", "status_next_at_pinned", "status_lease_owner",
    "status_lease_expires_at", "status_lease_token", "status_claimed_at", "status_attempts", "status_failures",
    "status_crashes", "status_error"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_effort"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- enter a state after a try that failed
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at, ended_at,
    outcome, error, traceback)
    SELECT "id", "status_attempts", "status_sequence", "status", "status_lease_owner", "status_claimed_at",
        statemachine_fields_now(julianday('now'), %s), statemachine_fields_now(julianday('now'), %s), %s, %s, %s
    FROM "lab_effort"
    WHERE "id" = %s AND "status_lease_token" = %s ON CONFLICT DO NOTHING;
-- again: enter a state (3)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

-- stay after a try
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
-- again: enter a state after a try that failed (3)
SELECT "status_changed_at"
    FROM "lab_effort"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_effort"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_effort"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
-- again: stay after a try (6)
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_effort"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_effort"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_effort"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_effort"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_effort"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at, ended_at,
    outcome, error, traceback)
    SELECT "id", "status_attempts", "status_sequence", "status", "status_lease_owner", "status_claimed_at", NULL,
        statemachine_fields_now(julianday('now')), %s, %s || "status_lease_owner" || %s, %s
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        () ON CONFLICT DO NOTHING;
UPDATE "lab_effort"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
INSERT INTO "lab_effortstateattempt" (instance_id, number, sequence, state, worker, claimed_at, started_at, ended_at,
    outcome, error, traceback)
    SELECT "id", "status_attempts", "status_sequence", "status", "status_lease_owner", "status_claimed_at", NULL,
        statemachine_fields_now(julianday('now')), %s, %s || "status_lease_owner" || %s, %s
    FROM "lab_effort"
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN () ON
        CONFLICT DO NOTHING;
UPDATE "lab_effort"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_effort"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_effort"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_effort"
    WHERE "id" = %s;
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), CASE
        WHEN "status_inbox" > %s THEN %s ELSE %s END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
        "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "code" = %s AND "status" = %s;
INSERT INTO "lab_dealstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "code", "status_sequence", "status_changed_at"
    FROM "lab_deal"
    WHERE "code" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), CASE
        WHEN "status_inbox" > %s THEN %s ELSE %s END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
        "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "code" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_sequence" = "status_sequence" + 1, "status_changed_at" = statemachine_fields_now(julianday('now')),
        "status_next_at" = statemachine_fields_now(julianday('now'), CASE WHEN "status_inbox" > %s THEN %s ELSE %s END),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "code" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
-- Django: UPDATE lab_deal
COMMIT;
-- Django: SELECT lab_deal

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_deal"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_deal
-- Django: SELECT lab_deal
-- Django: UPDATE lab_deal
-- Django: SELECT lab_deal
-- Django: INSERT lab_dealstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_deal"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_deal"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "code" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_deal"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "code"
    FROM "lab_deal"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "code" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), CASE
        WHEN "status_inbox" > %s THEN %s ELSE %s END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
        "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "code" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_inbox" > %s;
COMMIT;

-- enter a state and take an event
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
-- again: enter a state (3)
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
UPDATE "lab_dealstateevent"
    SET taken_by = %s
    WHERE instance_id = %s AND number IN (%s) AND taken_by IS NULL;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_inbox" > %s;
COMMIT;

-- deliver()
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
SELECT 1
    FROM "lab_dealstateevent"
    WHERE instance_id = %s AND dedup_key = %s;
INSERT INTO "lab_dealstateevent" (id, instance_id, number, name, payload, dedup_key, delivered_at)
    SELECT %s, "code", "status_inbox" + 1, %s, %s, %s, statemachine_fields_now(julianday('now'))
    FROM "lab_deal"
    WHERE "code" = %s;
UPDATE "lab_deal"
    SET "status_inbox" = "status_inbox" + 1
    WHERE "code" = %s;
UPDATE "lab_deal"
    SET "status_next_at" = statemachine_fields_now(julianday('now'))
    WHERE "code" = %s AND "status_lease_expires_at" IS NULL AND "status_error" = '' AND NOT ("status_next_at" IS NOT
        NULL AND "status_next_at" <= statemachine_fields_now(julianday('now')));
SELECT "status_inbox", "status_lease_expires_at" IS NULL AND "status_next_at" IS NOT NULL AND "status_next_at" <=
    statemachine_fields_now(julianday('now'))
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

-- bulk_deliver()
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_sequence" = "status_sequence"
    WHERE "code" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
SELECT 1
    FROM "lab_dealstateevent"
    WHERE instance_id = %s AND dedup_key = %s;
-- again: deliver() (5)
UPDATE "lab_deal"
    SET "status_inbox" = "status_inbox" + 1
    WHERE "code" = %s;
-- again: deliver() (7)
-- again: deliver() (8)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT "status_changed_at"
    FROM "lab_deal"
    WHERE "code" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_deal"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), CASE WHEN "status_inbox" > %s THEN %s ELSE %s END),
        "status_next_at_pinned" = FALSE
    WHERE "code" = %s AND "status_lease_token" = %s AND "status" = %s;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_inbox" > %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT 1
    FROM "lab_deal"
    WHERE "code" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_deal"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT
        IN ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status_lease_token" = "status_lease_token"
    WHERE "code" IS NULL;
UPDATE "lab_deal"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "code" NOT IN
        (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_deal"
    SET "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), CASE
        WHEN "status_inbox" > %s THEN %s ELSE %s END), "status_next_at_pinned" = FALSE, "status_lease_owner" = '',
        "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0,
        "status_crashes" = 0, "status_error" = ''
    WHERE "code" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_deal"
    WHERE "code" = %s;
COMMIT;

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
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN "status_sequence" +
        1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
INSERT INTO "lab_expeditionstatetransition" ("id", "from_status", "to_status", "metadata", "instance_id", "sequence",
    "transitioned_at")
    SELECT %s, %s, %s, %s, "id", "status_sequence", "status_changed_at"
    FROM "lab_expedition"
    WHERE "id" = %s
    RETURNING "sequence", "transitioned_at";
SELECT "status_sequence", "status_changed_at", "status_next_at", "status_lease_token"
    FROM "lab_expedition"
    WHERE "id" = %s;
COMMIT;

-- a move in a transaction
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a state
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- expected= a number
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN "status_sequence" +
        1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_sequence" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- save=False and save()
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN "status_sequence" +
        1 ELSE "status_cancels" END, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
-- Django: UPDATE lab_expedition
COMMIT;
-- Django: SELECT lab_expedition

-- force_transition_to()
BEGIN IMMEDIATE;
-- again: a move (2)
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- a move that the graph does not have
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_expedition"
    WHERE "id" = %s;
COMMIT;

-- a move of an instance that is stale, refused
BEGIN IMMEDIATE;
-- again: a move (2)
UPDATE "lab_expedition"
    SET "status_sequence" = "status_sequence"
    WHERE "id" = %s;
SELECT "status", "status_sequence", "status_lease_token"
    FROM "lab_expedition"
    WHERE "id" = %s;
COMMIT;

-- bulk_transition()
BEGIN IMMEDIATE;
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition
-- Django: INSERT lab_expeditionstatetransition
COMMIT;

-- claim what is due
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_expedition"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token" + 1, "status_lease_owner" = %s, "status_lease_expires_at" =
        statemachine_fields_now(julianday('now'), %s), "status_claimed_at" = statemachine_fields_now(julianday('now')),
        "status_attempts" = "status_attempts" + 1
    WHERE "id" = %s;
SELECT "status_changed_at", "id", "plan", "note", "status", "status_sequence", "status_changed_at", "status_next_at",
    "status_next_at_pinned", "status_lease_owner", "status_lease_expires_at", "status_lease_token", "status_claimed_at",
    "status_attempts", "status_failures", "status_crashes", "status_error", "status_cancels"
    FROM "lab_expedition"
    WHERE "id" = %s;
COMMIT;

-- claim all but what is set aside
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_expedition"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" NOT IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim what a worker may have died of
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_expedition"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 1
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
COMMIT;

-- claim one of these
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
SELECT "id"
    FROM "lab_expedition"
    WHERE "status" IN (%s) AND "status_next_at" <= %s AND "status_lease_expires_at" IS NULL AND "status_crashes" = 0 AND
        "id" IN (%s)
    ORDER BY "status_crashes", "status_next_at" LIMIT %s;
-- again: claim what is due (5)
-- again: claim what is due (6)
COMMIT;

-- what a claim would take
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
-- again: claim what is due (4)
COMMIT;

-- enter a state
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN "status_sequence" +
        1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- stay
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT "status_changed_at"
    FROM "lab_expedition"
    WHERE "id" = %s;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_expedition"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_crashes" = 0, "status_failures" = %s, "status_error" = %s, "status_next_at" =
        statemachine_fields_now(julianday('now'), %s), "status_next_at_pinned" = FALSE
    WHERE "id" = %s AND "status_lease_token" = %s AND "status" = %s;
COMMIT;

-- release
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- release before it was tried
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- beat
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_lease_expires_at" = statemachine_fields_now(julianday('now'), %s)
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- held
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_expedition"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- lock a held row
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT 1
    FROM "lab_expedition"
    WHERE "id" = %s AND "status_lease_token" = %s;
COMMIT;

-- recover what has run out
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
SELECT statemachine_fields_now(julianday('now'));
UPDATE "lab_expedition"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_expires_at" <= %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN
        ();
COMMIT;

-- recover what a dead worker held
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_error" = %s || "status_lease_owner" || %s, "status_crashes" = "status_crashes" + 1, "status_lease_owner"
        = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN ();
COMMIT;

-- give back what was claimed unheard
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_lease_token" = "status_lease_token"
    WHERE "id" IS NULL;
UPDATE "lab_expedition"
    SET "status_lease_owner" = '', "status_lease_expires_at" = NULL, "status_lease_token" = "status_lease_token" + 1,
        "status_attempts" = "status_attempts" - 1
    WHERE "status" IN (%s) AND "status_lease_owner" = %s AND "status_lease_expires_at" IS NOT NULL AND "id" NOT IN (%s);
COMMIT;

-- a single move under a lease
BEGIN IMMEDIATE;
UPDATE "lab_expedition"
    SET "status_cancels" = CASE WHEN "status_cancels" = 0 AND "status" IN ('WALKING', 'GUIDED') THEN "status_sequence" +
        1 ELSE "status_cancels" END, "status" = %s, "status_sequence" = "status_sequence" + 1, "status_changed_at" =
        statemachine_fields_now(julianday('now')), "status_next_at" = statemachine_fields_now(julianday('now'), %s),
        "status_next_at_pinned" = FALSE, "status_lease_owner" = '', "status_lease_expires_at" = NULL,
        "status_lease_token" = "status_lease_token" + 1, "status_failures" = 0, "status_crashes" = 0, "status_error" =
        ''
    WHERE "id" = %s AND "status" = %s AND "status_lease_token" = %s;
-- again: a move (3)
-- again: a move (4)
COMMIT;

-- run_at()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition

-- release()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition

-- resume()
-- Django: UPDATE lab_expedition
-- Django: SELECT lab_expedition
