package appliancetest

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver

	"signalbox/transport"
)

// Count returns the single number that a query yields, read beside the appliance from its file.
func (s *Server) Count(query string, args ...any) int {
	s.t.Helper()
	var n int
	s.read(func(db *sql.DB) error { return db.QueryRow(query, args...).Scan(&n) })
	return n
}

// Text returns the single text that a query yields; "" for NULL.
func (s *Server) Text(query string, args ...any) string {
	s.t.Helper()
	var text sql.NullString
	s.read(func(db *sql.DB) error { return db.QueryRow(query, args...).Scan(&text) })
	return text.String
}

func (s *Server) read(fn func(*sql.DB) error) {
	s.t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.DatabasePath()+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		s.t.Fatalf("open database: %v", err)
	}
	defer db.Close()
	if err := fn(db); err != nil {
		s.t.Fatalf("read database: %v", err)
	}
}

// Write changes the database behind the appliance's back, which must be stopped.
func (s *Server) Write(statement string, args ...any) {
	s.t.Helper()
	if s.running {
		s.t.Fatal("write: the appliance is running")
	}
	db, err := sql.Open("sqlite", "file:"+s.DatabasePath())
	if err != nil {
		s.t.Fatalf("open database: %v", err)
	}
	defer db.Close()
	if _, err := db.Exec(statement, args...); err != nil {
		s.t.Fatalf("write database: %v", err)
	}
}

// liveness lists the columns that say when somebody was last heard, which polls, sweeps and heartbeats may move.
var liveness = map[string][]string{
	"agents":        {"state", "last_seen_at", "last_connect_at", "offline_since", "updated_at"},
	"agent_workers": {"state", "last_seen_at", "last_connect_at", "updated_at"},
	"workers":       {"last_heartbeat"},
	"queues":        {"last_seen_at"},
}

// State is the content of the database: a digest per table.
type State map[string]string

// State reads the database's content, without columns of liveness and without the tables named.
func (s *Server) State(without ...string) State {
	s.t.Helper()
	state := State{}
	s.read(func(db *sql.DB) error {
		tables, err := column(db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
		if err != nil {
			return err
		}
		for _, table := range tables {
			if slices.Contains(without, table) {
				continue
			}
			if state[table], err = digest(db, table); err != nil {
				return err
			}
		}
		return nil
	})
	return state
}

func column(db *sql.DB, query string, args ...any) (values []string, err error) {
	rows, err := db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}

func digest(db *sql.DB, table string) (string, error) {
	columns, err := column(db, "SELECT name FROM pragma_table_info(?)", table)
	if err != nil {
		return "", err
	}
	quoted := make([]string, 0, len(columns))
	for _, c := range columns {
		if !slices.Contains(liveness[table], c) {
			quoted = append(quoted, "quote("+c+")")
		}
	}
	rows, err := column(db, "SELECT "+strings.Join(quoted, " || ',' || ")+" FROM "+table+" ORDER BY 1")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, row := range rows {
		fmt.Fprintln(sum, row)
	}
	return strconv.Itoa(len(rows)) + " rows " + hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// Unchanged fails the test when the database's content is not what it was. without names the tables that State left out.
func (s *Server) Unchanged(before State, without ...string) {
	s.t.Helper()
	after := s.State(without...)
	if maps.Equal(before, after) {
		return
	}
	for table, was := range before {
		if after[table] != was {
			s.t.Errorf("table %s changed: %s, was %s", table, after[table], was)
		}
	}
}

// Eventually fails the test unless the condition comes true. It is for what follows an answer without being part of it.
func (s *Server) Eventually(what string, condition func() bool) {
	s.t.Helper()
	s.Pump(0, what, func(wait <-chan time.Time) bool {
		if condition() {
			return true
		}
		<-wait
		return false
	})
}

// Metric scrapes the appliance and returns the value of the sample written exactly so, such as
// `z4j_auth_ip_denied_total{surface="agent"}`; 0 when there is none.
func (s *Server) Metric(sample string) float64 {
	s.t.Helper()
	values, err := s.Scrape(sample)
	if err != nil {
		s.t.Fatalf("scrape: %v", err)
	}
	return values[0]
}

// Scrape is Metric for several samples, from any goroutine.
func (s *Server) Scrape(samples ...string) ([]float64, error) {
	resp, err := s.client.Get("http://" + s.app.Addresses()[transport.ListenerMetrics] + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %d, %w", resp.StatusCode, err)
	}
	values := make([]float64, len(samples))
	for line := range strings.Lines(string(text)) {
		for i, sample := range samples {
			value, ok := strings.CutPrefix(line, sample+" ")
			if !ok {
				continue
			}
			if values[i], err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
				return nil, fmt.Errorf("%w in %q", err, line)
			}
		}
	}
	return values, nil
}
