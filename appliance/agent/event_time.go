package agent

import "time"

// ParseTime reads an ISO 8601 date and time as agents write them (agent protocol C.5, D.4): a date, any one character
// of T, t or space, hours and minutes, optional seconds with a fraction, and an optional offset. Without an offset the
// time is UTC. A fraction beyond microseconds is cut. The result is UTC.
func ParseTime(s string) (time.Time, bool) {
	p := timeParser{s: s}
	year, month, day := p.digits(4), 0, 0
	if p.accept('-') {
		month = p.digits(2)
		p.need('-')
	} else {
		month = p.digits(2)
	}
	day = p.digits(2)
	if p.bad || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return time.Time{}, false
	}
	if p.s == "" {
		return time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC), year > 0
	}
	if !p.accept('T') && !p.accept('t') && !p.accept(' ') {
		return time.Time{}, false
	}
	hour, minute, second, nanos := p.clock()
	offset := p.offset()
	if p.bad || p.s != "" || year < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	return t.Add(-offset), true
}

// timeParser consumes s from the front; bad sticks.
type timeParser struct {
	s   string
	bad bool
}

func (p *timeParser) accept(c byte) bool {
	if p.s == "" || p.s[0] != c {
		return false
	}
	p.s = p.s[1:]
	return true
}

func (p *timeParser) need(c byte) {
	if !p.accept(c) {
		p.bad = true
	}
}

// digits reads exactly n digits.
func (p *timeParser) digits(n int) int {
	if len(p.s) < n {
		p.bad = true
		return 0
	}
	v := 0
	for i := range n {
		c := p.s[i]
		if c < '0' || c > '9' {
			p.bad = true
			return 0
		}
		v = v*10 + int(c-'0')
	}
	p.s = p.s[n:]
	return v
}

// clock reads HH:MM[:SS[.ffffff]] or HHMM[SS[.ffffff]].
func (p *timeParser) clock() (hour, minute, second, nanos int) {
	hour = p.digits(2)
	colon := p.accept(':')
	minute = p.digits(2)
	switch {
	case colon && p.accept(':'):
		second = p.digits(2)
	case !colon && p.s != "" && p.s[0] >= '0' && p.s[0] <= '9':
		second = p.digits(2)
	default:
		return hour, minute, 0, 0
	}
	if !p.accept('.') && !p.accept(',') {
		return hour, minute, second, 0
	}
	unit := 100_000_000
	seen := false
	for p.s != "" && p.s[0] >= '0' && p.s[0] <= '9' {
		if unit >= 1000 {
			nanos += int(p.s[0]-'0') * unit
		}
		unit /= 10
		seen = true
		p.s = p.s[1:]
	}
	if !seen {
		p.bad = true
	}
	return hour, minute, second, nanos
}

// offset reads Z, ±HH, ±HHMM, ±HH:MM or ±HH:MM:SS; nothing is UTC.
func (p *timeParser) offset() time.Duration {
	if p.s == "" || p.accept('Z') || p.accept('z') {
		return 0
	}
	sign := time.Duration(1)
	if p.accept('-') {
		sign = -1
	} else {
		p.need('+')
	}
	hour, minute, second := p.digits(2), 0, 0
	if p.s != "" {
		p.accept(':')
		minute = p.digits(2)
	}
	if p.s != "" {
		p.accept(':')
		second = p.digits(2)
	}
	if hour > 23 || minute > 59 || second > 59 {
		p.bad = true
	}
	return sign * (time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}
