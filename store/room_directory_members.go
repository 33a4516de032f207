package store

import (
	"strings"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// DirAgentIn tells whether the agent is a member.
func (r *reader) DirAgentIn(roomNo, agentNo int64) (in bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM room_members WHERE room_no = ? AND room_agent_no = ?)`, roomNo, agentNo).
		Scan(&in)
	return in, err
}

const dirMemberColumns = roomAgentColumns + `, coalesce(m.alias, ''), m.listening, m.joined_position, m.joined_at`

const fromDirMembers = fromRoomAgents + ` JOIN room_members m ON m.room_agent_no = a.room_agent_no`

func (r *reader) dirMembers(query string, args ...any) ([]room.Member, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.Member{}
	for rows.Next() {
		var row roomAgentRow
		var m room.Member
		dest := append(row.dest(), &m.Alias, &m.Listening, &m.JoinedPosition, &m.JoinedAt)
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		if m.Agent, err = row.agent(); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// DirMember finds an agent of the room.
func (r *reader) DirMember(roomNo, agentNo int64) (room.Member, error) {
	found, err := r.dirMembers(`SELECT `+dirMemberColumns+fromDirMembers+` WHERE m.room_no = ? AND m.room_agent_no = ?`,
		roomNo, agentNo)
	switch {
	case err != nil:
		return room.Member{}, err
	case len(found) == 0:
		return room.Member{}, fault.New(fault.NotFound, "not found")
	}
	return found[0], nil
}

// DirMembers returns the agents of the room by name.
func (r *reader) DirMembers(roomNo int64) ([]room.Member, error) {
	return r.dirMembers(`SELECT `+dirMemberColumns+fromDirMembers+` WHERE m.room_no = ? ORDER BY a.name`, roomNo)
}

// DirNamesIn returns whose name and whose alias in the room the text is, case aside; "" for none. Names of agents are in
// lower case.
func (r *reader) DirNamesIn(roomNo int64, text string) (named, aliased string, err error) {
	err = r.QueryRow(`SELECT a.name FROM room_agents a JOIN room_members m ON m.room_agent_no = a.room_agent_no
		WHERE a.name = ? AND m.room_no = ?`, strings.ToLower(text), roomNo).Scan(&named)
	if noRowIsZero(err) != nil {
		return "", "", err
	}
	err = r.QueryRow(`SELECT a.name FROM room_members m JOIN room_agents a ON a.room_agent_no = m.room_agent_no
		WHERE m.room_no = ? AND m.alias = ?`, roomNo, text).Scan(&aliased)
	return named, aliased, noRowIsZero(err)
}

// DirCountMembers counts the agents of the room.
func (r *reader) DirCountMembers(roomNo int64) (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM room_members WHERE room_no = ?`, roomNo).Scan(&n)
	return n, err
}

// DirPersonIn tells whether the person is in the room, and as a manager.
func (r *reader) DirPersonIn(roomNo, personNo int64) (in, manager bool, err error) {
	err = r.QueryRow(`SELECT 1, manager FROM room_people WHERE room_no = ? AND person_no = ?`, roomNo, personNo).
		Scan(&in, &manager)
	return in, manager, noRowIsZero(err)
}

// DirPeopleIn returns the people in the room by name.
func (r *reader) DirPeopleIn(roomNo int64) ([]room.PersonMember, error) {
	rows, err := r.Query(`SELECT `+roomPersonColumns+`, m.manager, m.joined_position, m.joined_at
		FROM room_people m JOIN people p ON p.person_no = m.person_no WHERE m.room_no = ? ORDER BY p.name, p.person_no`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.PersonMember{}
	for rows.Next() {
		var row roomPersonRow
		var m room.PersonMember
		if err := rows.Scan(append(row.dest(), &m.Manager, &m.JoinedPosition, &m.JoinedAt)...); err != nil {
			return nil, err
		}
		m.Person = row.person()
		out = append(out, m)
	}
	return out, rows.Err()
}

// DirPeopleOf returns the numbers of the people in the room.
func (r *reader) DirPeopleOf(roomNo int64) ([]int64, error) {
	return r.numbers(`SELECT person_no FROM room_people WHERE room_no = ?`, roomNo)
}

// DirChildren returns the agents whose parent the agent is, by name.
func (r *reader) DirChildren(agentNo int64) ([]room.Agent, error) {
	return r.roomAgents(`a.parent_no = ? ORDER BY a.name`, agentNo)
}

// DirPeopleNamed returns the people with the email, or else with the name, at most limit.
func (r *reader) DirPeopleNamed(text string, limit int) ([]room.Person, error) {
	found, err := r.roomPersons(`SELECT `+roomPersonColumns+` FROM people p WHERE p.email = ?`, strings.ToLower(text))
	if err != nil || len(found) > 0 {
		return found, err
	}
	return r.RoomPeopleNamed(text, limit)
}

// DirInsertMembers stores members that join at the room's present position.
func (tx *Tx) DirInsertMembers(roomNo int64, members []room.Member) error {
	for _, m := range members {
		_, err := tx.Exec(`INSERT INTO room_members (room_no, room_agent_no, alias, listening, joined_position, joined_at)
			SELECT room_no, ?, ?, ?, last_position, ? FROM rooms WHERE room_no = ?`,
			m.Agent.No, roomTextOrNull(m.Alias), m.Listening, tx.Now(), roomNo)
		if err != nil {
			return err
		}
	}
	return nil
}

// DirDeleteMember ends a membership.
func (tx *Tx) DirDeleteMember(roomNo, agentNo int64) error {
	_, err := tx.Exec(`DELETE FROM room_members WHERE room_no = ? AND room_agent_no = ?`, roomNo, agentNo)
	return err
}

// DirDeleteMemberships removes an agent from every room and returns the rooms' numbers.
func (tx *Tx) DirDeleteMemberships(agentNo int64) ([]int64, error) {
	rooms, err := tx.numbers(`SELECT room_no FROM room_members WHERE room_agent_no = ?`, agentNo)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(`DELETE FROM room_members WHERE room_agent_no = ?`, agentNo)
	return rooms, err
}

// DirSetAlias stores an alias, "" none.
func (tx *Tx) DirSetAlias(roomNo, agentNo int64, alias string) error {
	_, err := tx.Exec(`UPDATE room_members SET alias = ? WHERE room_no = ? AND room_agent_no = ?`,
		roomTextOrNull(alias), roomNo, agentNo)
	return err
}

// DirSetListening stores whether joins of others are notifiable for the agent.
func (tx *Tx) DirSetListening(roomNo, agentNo int64, listening bool) error {
	_, err := tx.Exec(`UPDATE room_members SET listening = ? WHERE room_no = ? AND room_agent_no = ?`,
		listening, roomNo, agentNo)
	return err
}

// DirInsertPerson stores a person who joins at the room's present position.
func (tx *Tx) DirInsertPerson(roomNo, personNo int64, manager bool) error {
	_, err := tx.Exec(`INSERT INTO room_people (room_no, person_no, manager, joined_position, joined_at)
		SELECT room_no, ?, ?, last_position, ? FROM rooms WHERE room_no = ?`, personNo, manager, tx.Now(), roomNo)
	return err
}

// DirSetManager stores whether a person in the room is a manager.
func (tx *Tx) DirSetManager(roomNo, personNo int64, manager bool) error {
	_, err := tx.Exec(`UPDATE room_people SET manager = ? WHERE room_no = ? AND person_no = ?`, manager, roomNo, personNo)
	return err
}

// DirDeletePerson takes a person out of the room.
func (tx *Tx) DirDeletePerson(roomNo, personNo int64) error {
	_, err := tx.Exec(`DELETE FROM room_people WHERE room_no = ? AND person_no = ?`, roomNo, personNo)
	return err
}
