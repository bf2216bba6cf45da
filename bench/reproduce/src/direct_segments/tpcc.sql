-- A database and transactions like those of TPC-C, with a tenth of its size per warehouse: 10 districts
-- of 300 customers and 300 orders, 10,000 items in stock. {warehouses} is replaced by their number.
-- Differences: no terminals and no keying times; the mix is new orders, payments and stock levels. Keys
-- of customers and items are drawn from a skewed distribution, as in TPC-C.
CREATE DATABASE tpcc CHARACTER SET latin1;
USE tpcc;

CREATE TABLE warehouse (w INT PRIMARY KEY, tax DECIMAL(4,4), ytd DECIMAL(14,2), name CHAR(10), street CHAR(40));
CREATE TABLE district (w INT, d INT, tax DECIMAL(4,4), ytd DECIMAL(14,2), next_order INT, name CHAR(10), street CHAR(40),
  PRIMARY KEY (w, d));
CREATE TABLE customer (w INT, d INT, c INT, last VARCHAR(16), first VARCHAR(16), street CHAR(60), phone CHAR(16), discount DECIMAL(4,4),
  balance DECIMAL(12,2), paid DECIMAL(12,2), payments INT, note VARCHAR(500), PRIMARY KEY (w, d, c), KEY (w, d, last, first));
CREATE TABLE item (i INT PRIMARY KEY, name VARCHAR(24), price DECIMAL(5,2), note VARCHAR(50));
CREATE TABLE stock (w INT, i INT, quantity INT, ytd INT, orders INT, remote INT, dist CHAR(240), note VARCHAR(50),
  PRIMARY KEY (w, i));
CREATE TABLE orders (w INT, d INT, o INT, c INT, entered DATETIME, lines_ INT, PRIMARY KEY (w, d, o), KEY (w, d, c, o));
CREATE TABLE order_line (w INT, d INT, o INT, l INT, i INT, supplier INT, quantity INT, amount DECIMAL(6,2), dist CHAR(24),
  PRIMARY KEY (w, d, o, l));
CREATE TABLE history (h BIGINT AUTO_INCREMENT PRIMARY KEY, w INT, d INT, c INT, paid_at DATETIME, amount DECIMAL(6,2), note VARCHAR(24));

SET unique_checks = 0, foreign_key_checks = 0, autocommit = 0;
INSERT INTO warehouse SELECT seq, 0.1, 0, 'warehouse', REPEAT('w', 40) FROM seq_1_to_{warehouses};
INSERT INTO district SELECT w, seq, 0.05, 0, 301, 'district', REPEAT('d', 40) FROM warehouse JOIN seq_1_to_10;
INSERT INTO customer SELECT w, d, seq, CONCAT('LAST', seq MOD 100), CONCAT('FIRST', seq), REPEAT('s', 60), '0123456789012345', 0.1,
  -10, 10, 1, REPEAT('c', 300 + seq MOD 200) FROM district JOIN seq_1_to_300;
INSERT INTO item SELECT seq, CONCAT('item ', seq), 1 + seq MOD 100, REPEAT('i', 26 + seq MOD 24) FROM seq_1_to_10000;
INSERT INTO stock SELECT w, i, 10 + i MOD 90, 0, 0, 0, REPEAT('t', 240), note FROM warehouse JOIN item;
INSERT INTO orders SELECT w, d, seq, 1 + seq * 7 MOD 300, NOW(), 10 FROM district JOIN seq_1_to_300;
INSERT INTO order_line SELECT w, d, o, seq, 1 + (o * 37 + seq * 7919 + d) MOD 10000, w, 5, 50, REPEAT('l', 24)
  FROM orders JOIN seq_1_to_10;
COMMIT;

-- Draws from 1 to `most` with a skewed distribution: NURand of TPC-C.
CREATE FUNCTION uneven(mask INT, most INT) RETURNS INT NOT DETERMINISTIC NO SQL
  RETURN 1 + ((FLOOR(RAND() * (mask + 1)) | FLOOR(RAND() * most)) + 17) MOD most;

DELIMITER //
CREATE PROCEDURE new_order(at_w INT, at_d INT)
BEGIN
  DECLARE number, line, lines_, at_i, from_w, wanted, there INT DEFAULT 0;
  DECLARE cost, w_tax, d_tax, off DECIMAL(5,4) DEFAULT 0;
  DECLARE price_ DECIMAL(5,2);
  DECLARE dist_ CHAR(240);
  DECLARE customer_ INT DEFAULT uneven(63, 300);
  -- A transaction in a deadlock ends without effect. A terminal of TPC-C would retry it.
  DECLARE EXIT HANDLER FOR 1205, 1213 ROLLBACK;
  SET lines_ = 5 + FLOOR(RAND() * 11);
  START TRANSACTION;
  SELECT tax INTO w_tax FROM warehouse WHERE w = at_w;
  SELECT discount INTO off FROM customer WHERE w = at_w AND d = at_d AND c = customer_;
  SELECT tax, next_order INTO d_tax, number FROM district WHERE w = at_w AND d = at_d FOR UPDATE;
  UPDATE district SET next_order = number + 1 WHERE w = at_w AND d = at_d;
  INSERT INTO orders VALUES (at_w, at_d, number, customer_, NOW(), lines_);
  WHILE line < lines_ DO
    SET line = line + 1, at_i = uneven(2047, 10000), wanted = 1 + FLOOR(RAND() * 10);
    SET from_w = IF(RAND() < 0.01, 1 + FLOOR(RAND() * {warehouses}), at_w);
    SELECT price INTO price_ FROM item WHERE i = at_i;
    SELECT quantity, dist INTO there, dist_ FROM stock WHERE w = from_w AND i = at_i FOR UPDATE;
    UPDATE stock SET quantity = IF(there >= wanted + 10, there - wanted, there - wanted + 91), ytd = ytd + wanted,
      orders = orders + 1, remote = remote + (from_w <> at_w) WHERE w = from_w AND i = at_i;
    INSERT INTO order_line VALUES (at_w, at_d, number, line, at_i, from_w, wanted,
      LEAST(9999, wanted * price_ * (1 + w_tax + d_tax) * (1 - off)), LEFT(dist_, 24));
  END WHILE;
  COMMIT;
END//

CREATE PROCEDURE payment(at_w INT, at_d INT)
BEGIN
  DECLARE customer_ INT DEFAULT uneven(63, 300);
  DECLARE amount_ DECIMAL(6,2) DEFAULT 1 + RAND() * 4999;
  DECLARE EXIT HANDLER FOR 1205, 1213 ROLLBACK;
  START TRANSACTION;
  UPDATE warehouse SET ytd = ytd + amount_ WHERE w = at_w;
  UPDATE district SET ytd = ytd + amount_ WHERE w = at_w AND d = at_d;
  -- 60 % by last name; of several customers the middle one by first name.
  IF RAND() < 0.6 THEN
    SELECT c INTO customer_ FROM customer WHERE w = at_w AND d = at_d AND last = CONCAT('LAST', uneven(31, 100) - 1)
      ORDER BY first LIMIT 1, 1;
  END IF;
  UPDATE customer SET balance = balance - amount_, paid = paid + amount_, payments = payments + 1
    WHERE w = at_w AND d = at_d AND c = customer_;
  INSERT INTO history VALUES (NULL, at_w, at_d, customer_, NOW(), amount_, 'payment');
  COMMIT;
END//

CREATE PROCEDURE stock_level(at_w INT, at_d INT)
BEGIN
  DECLARE number INT;
  SELECT next_order INTO number FROM district WHERE w = at_w AND d = at_d;
  SELECT COUNT(DISTINCT stock.i) FROM order_line JOIN stock ON stock.w = order_line.w AND stock.i = order_line.i
    WHERE order_line.w = at_w AND d = at_d AND o BETWEEN number - 20 AND number - 1 AND stock.quantity < 15;
END//

CREATE PROCEDURE one()
BEGIN
  DECLARE at_w INT DEFAULT 1 + FLOOR(RAND() * {warehouses});
  DECLARE at_d INT DEFAULT 1 + FLOOR(RAND() * 10);
  CASE FLOOR(RAND() * 25)
    WHEN 0 THEN CALL stock_level(at_w, at_d);
    ELSE IF RAND() < 0.51 THEN CALL new_order(at_w, at_d); ELSE CALL payment(at_w, at_d); END IF;
  END CASE;
END//
DELIMITER ;

CREATE USER terminal@127.0.0.1;
GRANT EXECUTE ON tpcc.* TO terminal@127.0.0.1;
