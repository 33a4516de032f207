package store

// RoomCounts counts the registered room agents and the rooms that are not deleted.
func (r *reader) RoomCounts() (agents, rooms int64, err error) {
	err = r.QueryRow(`SELECT (SELECT count(*) FROM room_agents),
		(SELECT count(*) FROM rooms) - (SELECT count(*) FROM rooms WHERE deleted_at IS NOT NULL)`).Scan(&agents, &rooms)
	return agents, rooms, err
}
